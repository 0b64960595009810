"""What a search has spent: calls, tokens and money, by who made the calls, and the budget that ends it.

The ledger is read from the calls that the store keeps, so that a search that resumes knows what its earlier
life spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentlightning.types import Call, UsageError

ROLES = ("agent", "critic", "editor")
MILLION = 1_000_000


class BudgetSpent(Exception):
    """The search must make no further call."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search; ``None``: no limit. They hold for the agent's, the critic's and the editor's calls
    together.
    """

    calls: int | None = None
    tokens: int | None = None
    """Of prompts and answers."""
    money: float | None = None
    """In the currency of the prices."""

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "money"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise UsageError(f"budget.{name}: give a number above 0, not {value!r}")
            if not math.isfinite(value):
                raise UsageError(f"budget.{name}: leave it out for no limit, instead of {value!r}")

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return (self.calls, self.tokens, self.money) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs for a million tokens."""

    prompt: float = 0.0
    completion: float = 0.0


def read_prices(given: Mapping[str, Any] | None) -> dict[str, Price]:
    """Return the price table: model → ``Price``, or a mapping ``{prompt: …, completion: …}``."""
    table: dict[str, Price] = {}
    for model, price in (given or {}).items():
        try:
            made = price if isinstance(price, Price) else Price(**price)
            if min(float(made.prompt), float(made.completion)) < 0:
                raise ValueError("a price is 0 or more")
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"prices.{model}: give prompt and completion, each for a million tokens: {error}"
            ) from None
        table[model] = made
    return table


@dataclass(slots=True)
class Spent:
    """What one role has spent."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, other: Spent) -> None:
        """Add another account."""
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.money += other.money


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

    def count(self, role: str, calls: Iterable[Call]) -> Spent:
        """Add the calls of one rollout, of all of its attempts; return what they cost."""
        made, account = Spent(), self.spent[role]
        for call in calls:
            first = call.choice == 0
            prompt = (call.prompt_tokens or _len(call.prompt_ids)) if first else 0
            completion = call.completion_tokens or _len(call.response_ids)
            made.add(Spent(int(first), prompt, completion, self._cost(call, prompt, completion)))
        account.add(made)
        if role == "agent":
            self.calls_of_rollout = max(self.calls_of_rollout, made.calls)
        return made

    def _cost(self, call: Call, prompt: int, completion: int) -> float:
        names = [name for name in (self.models.get(call.policy), call.policy, call.model) if name]
        price = next((self.prices[name] for name in names if name in self.prices), None)
        if price is None:
            if self.prices and call.choice == 0:
                self.unpriced[names[0]] += 1
            return 0.0
        return (price.prompt * prompt + price.completion * completion) / MILLION

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
        total, budget = self.total, self.budget
        if held_back:
            total.add(self.reserved)
        if budget.calls is not None and total.calls + calls > budget.calls:
            raise BudgetSpent(f"calls: {self.total.calls} of {budget.calls} are made{self._kept(held_back)}")
        if budget.tokens is not None and total.tokens >= budget.tokens:
            raise BudgetSpent(
                f"tokens: {self.total.tokens} of {budget.tokens} are used{self._kept(held_back)}"
            )
        if budget.money is not None and total.money >= budget.money:
            raise BudgetSpent(
                f"money: {self.total.money:.4f} of {budget.money} are spent{self._kept(held_back)}"
            )

    def _kept(self, held_back: bool) -> str:
        if not held_back or not self.reserved.calls:
            return ""
        return f", and {self.reserved.calls} calls are kept for the winner's held-out evaluation"

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


def _len(ids: Any) -> int:
    return 0 if ids is None else len(ids)
