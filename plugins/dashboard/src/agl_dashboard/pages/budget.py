"""What a run has spent of its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentlightning.types import StepReport

AMOUNTS = ("calls", "tokens", "money", "seconds")
_METRIC = "budget/"


class Amount(NamedTuple):
    """One of :data:`AMOUNTS`: what is spent, the run's limit, and what one rollout may spend."""

    name: str
    spent: float
    limit: float | None
    per_rollout: float | None

    @property
    def share(self) -> float | None:
        """The spent part of the limit, at most 1."""
        return None if not self.limit else min(1.0, self.spent / self.limit)


class BudgetView(NamedTuple):
    """A run's budget."""

    amounts: list[Amount]
    refused: int
    """Calls that were refused because a budget was spent."""
    unpriced: Mapping[str, int]
    """Model without a price → its calls, which cost nothing here."""


def budget_of(info: Mapping[str, Any], reports: Sequence[StepReport]) -> BudgetView | None:
    """Return the budget of a run: as its end recorded it, else as of its newest step."""
    known = (info.get("summary") or {}).get("budget")
    budget = known or info.get("budget")
    if not budget:
        return None
    spent = {name: float(value) for name, value in (budget.get("spent") or {}).items()}
    spent["tokens"] = spent.get("prompt_tokens", 0.0) + spent.get("completion_tokens", 0.0)
    refused = int(budget.get("refused", 0))
    if not known and reports:
        newest = max(reports, key=lambda report: report.step).metrics
        spent |= {name: newest[_METRIC + name] for name in AMOUNTS if _METRIC + name in newest}
        refused = int(newest.get(_METRIC + "refused", refused))
    limits, each = budget.get("limits") or {}, budget.get("per_rollout") or {}
    amounts = [Amount(name, spent.get(name, 0.0), limits.get(name), each.get(name)) for name in AMOUNTS]
    shown = [one for one in amounts if one.spent or one.limit or one.per_rollout]
    return BudgetView(shown, refused, budget.get("unpriced") or {})
