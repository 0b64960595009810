"""The section ``budget`` of a run's description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from agentlightning.budget.limits import Budget
from agentlightning.budget.prices import Price, read_prices, read_table, shipped_prices
from agentlightning.types.sections import Section


class LimitsSection(Section):
    """How much calls may cost; none: no limit."""

    calls: int | None = Field(default=None, gt=0, strict=True)
    """Model calls, those that failed included."""
    tokens: int | None = Field(default=None, gt=0, strict=True)
    """Tokens of prompts and answers."""
    money: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """In the currency of the prices (the shipped ones: US dollars)."""
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds since the beginning; those of earlier lives of a resumed run count."""

    @property
    def limits(self) -> Budget:
        """Return the limits."""
        return Budget(self.calls, self.tokens, self.money, self.seconds)


class BudgetSection(LimitsSection):
    """What a run may spend (``docs/budgets.md``): when it is spent, training ends and keeps what it has."""

    per_rollout: LimitsSection = LimitsSection()
    """What one rollout may spend, over all of its attempts; its next call is then refused."""
    prices: dict[str, dict[str, float]] | str = {}
    """Prices for a million tokens that win over the shipped ones: model → ``{prompt, completion}``, or a JSON
    file in the shape of the shipped one."""

    def table(self, folder: Path = Path(".")) -> dict[str, Price]:
        """Return all prices; a file is relative to ``folder``."""
        own: Any = self.prices
        table = read_table(folder / Path(own).expanduser()) if isinstance(own, str) else read_prices(own)
        return {**shipped_prices(), **table}

    @property
    def given(self) -> bool:
        """Whether anything is limited, or prices are given."""
        return self.limits.limited or self.per_rollout.limits.limited or bool(self.prices)
