"""What a search has spent: calls, tokens and money, by who made the calls, and the budget that ends it.

The ledger is read from the calls that the store keeps, so that a search that resumes knows what its earlier
life spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agl_gateway.budget.limits import Account, Budget, BudgetSpent, Spent
from agl_gateway.budget.prices import Price, Pricing

from agentlightning.types import Call

ROLES = ("agent", "critic", "editor")


@dataclass(slots=True)
class Ledger:
    """The accounts of a search. ``models``: policy of a route → the model that it asks for."""

    budget: Budget = field(default_factory=Budget)
    prices: Mapping[str, Price] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=lambda: {role: Spent() for role in ROLES})
    unpriced: Counter[str] = field(default_factory=Counter)
    """Model without a price → its calls, which cost nothing here."""
    reserved: Spent = field(default_factory=Spent)
    """Kept back from the search for the winner's held-out evaluation."""
    calls_of_rollout: int = 1
    """The most calls that a rollout of the agent has made so far."""

    @property
    def _pricing(self) -> Pricing:
        return Pricing(self.prices, self.models, unpriced=self.unpriced)

    def count(self, role: str, calls: Iterable[Call]) -> Spent:
        """Add the calls of one rollout, of all of its attempts; return what they cost."""
        made = self._pricing.cost(calls)
        self.spent[role].add(made)
        if role == "agent":
            self.calls_of_rollout = max(self.calls_of_rollout, made.calls)
        return made

    @property
    def total(self) -> Spent:
        """Return the sum of all accounts."""
        found = Spent()
        for account in self.spent.values():
            found.add(account)
        return found

    def require(self, calls: int = 1, *, held_back: bool = True) -> None:
        """Raise :class:`BudgetSpent` if ``calls`` more calls may exceed the budget. ``held_back``: leave what
        is reserved.
        """
        kept = self.reserved if held_back else Spent()
        account = Account(self.budget, self.total, reserved=kept)
        if (why := account.why_spent(0.0)) is not None:
            raise BudgetSpent(why)
        limit = self.budget.calls
        if limit is not None and account.spent.calls + kept.calls + calls > limit:
            raise BudgetSpent(f"calls: {account.spent.calls} of {limit} are made; {calls} more are needed")

    def rollouts_left(self, *, held_back: bool = True) -> int | None:
        """Return how many rollouts the calls suffice for, by the most calls that one made; ``None``: no
        limit.
        """
        if self.budget.calls is None:
            return None
        kept = self.reserved.calls if held_back else 0
        return max(0, self.budget.calls - self.total.calls - kept) // self.calls_of_rollout

    def summary(self) -> dict[str, Any]:
        """Return the accounts for the run's summary."""
        roles = {role: _account(account) for role, account in self.spent.items()}
        more = {"unpriced": dict(self.unpriced)} if self.unpriced else {}
        return {**_account(self.total), "by_role": roles, **more}


def _account(spent: Spent) -> dict[str, Any]:
    return {
        "calls": spent.calls,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
        "money": round(spent.money, 6),
    }
