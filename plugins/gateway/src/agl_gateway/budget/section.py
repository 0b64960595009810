"""The section ``budget`` of a run's description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from agentlightning.plugins.manager import load
from agentlightning.types.sections import Section
from agl_gateway.budget.limits import Budget
from agl_gateway.budget.prices import Price, read_prices, read_table, shipped_prices


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
    """What a run may spend (``docs/operate.md``): when it is spent, training ends and keeps what it has."""

    per_rollout: LimitsSection = LimitsSection()
    """What one rollout may spend, over all of its attempts; its next call is then refused."""
    prices: dict[str, dict[str, float]] | str = {}
    """Prices for a million tokens that win over the shipped ones: model → ``{prompt, completion}``, or a JSON
    file in the shape of the shipped one. The policies of a service that trains, by their names, have
    ``train`` too."""

    def own(self, folder: Path = Path(".")) -> dict[str, Price]:
        """Return the run's own prices; a file is relative to ``folder``."""
        own: Any = self.prices
        return read_table(folder / Path(own).expanduser()) if isinstance(own, str) else read_prices(own)

    def table(self, folder: Path = Path(".")) -> dict[str, Price]:
        """Return all prices."""
        return {**shipped_prices(), **self.own(folder)}

    @property
    def given(self) -> bool:
        """Whether anything is limited, or prices are given."""
        return self.limits.limited or self.per_rollout.limits.limited or bool(self.prices)


class BudgetField(Section):
    """The field ``budget`` of a run."""

    budget: BudgetSection | None = None
    """What the run and each rollout may spend: ``{calls: …, tokens: …, money: …, seconds: …, per_rollout:
    {…}}`` (``docs/operate.md``); none: no limit."""

    @model_validator(mode="after")
    def _driver_can_end(self: Any) -> Any:
        """A budget of the run ends training at some step, which its driver must be able to do."""
        if self.budget is not None and self.budget.limits.limited:
            driver = load().drivers.get(self.backend.driver)
            if driver is not None and not driver.ends_early:
                raise ValueError(
                    f"budget: the driver {driver.name!r} cannot carry it out, as it ends at its last step "
                    "only; use the driver 'local', or limit the rollouts with budget.per_rollout"
                )
        return self
