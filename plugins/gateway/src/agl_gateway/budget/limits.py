"""What calls have cost, and how much they may: calls, tokens, money and seconds.

``Budget`` holds limits, ``Spent`` what was used, and ``Account`` compares the two while calls are under way.
Invariant: a limit of calls is never exceeded; one of tokens or money by less than one call, as long as no
call is larger than all before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentlightning.types import UsageError

LIMITS = ("calls", "tokens", "money", "seconds")
KEPT_BACK = 1.1
"""What is reserved, by what the same work cost before: answers vary in length."""


class BudgetSpent(Exception):
    """No further call may be made; the message says which limit is reached."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits; ``None``: no limit."""

    calls: int | None = None
    tokens: int | None = None
    """Of prompts and answers."""
    money: float | None = None
    """In the currency of the prices."""
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in LIMITS:
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
        return (self.calls, self.tokens, self.money, self.seconds) != (None, None, None, None)

    def given(self) -> dict[str, float]:
        """Return the limits that there are, by name."""
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}


@dataclass(slots=True)
class Spent:
    """What was used."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, other: Spent, sign: int = 1) -> None:
        """Add another account; with ``sign=-1``, subtract it."""
        self.calls += sign * other.calls
        self.prompt_tokens += sign * other.prompt_tokens
        self.completion_tokens += sign * other.completion_tokens
        self.money += sign * other.money
        self.seconds += sign * other.seconds

    def copy(self) -> Spent:
        """Return an account of its own with the same amounts."""
        return Spent(self.calls, self.prompt_tokens, self.completion_tokens, self.money, self.seconds)

    def shown(self) -> dict[str, float]:
        """Return the amounts by name, for summaries and records."""
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "money": round(self.money, 6),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def read(cls, shown: Mapping[str, Any]) -> Spent:
        """Return the account of what :meth:`shown` returned."""
        return cls(**{name: shown[name] for name in cls.__slots__ if name in shown})


@dataclass(slots=True)
class Account:
    """What was spent under one budget, and the calls under way."""

    budget: Budget
    spent: Spent = field(default_factory=Spent)
    under_way: int = 0
    largest: Spent = field(default_factory=Spent)
    """Of every amount, the most that one call has cost."""
    reserved: Spent = field(default_factory=Spent)
    """Kept back for work that must be possible at the end."""

    def why_spent(self, seconds: float) -> str | None:
        """Return which limit is reached, ``None`` if none is. ``seconds``: used by now."""
        now = self.spent.copy()
        now.seconds = seconds
        for name, limit in self.budget.given().items():
            used, kept = getattr(now, name), getattr(self.reserved, name)
            if used + kept >= limit:
                back = f"; {kept:.6g} are kept for the evaluation at the end" if kept else ""
                return f"{name}: {used:.6g} of {limit:.6g} are used{back}"
        return None

    def has_room(self) -> bool:
        """Return whether one more call may begin beside those under way, each of which may cost as much as
        the largest so far. Before the first has ended, that is not known, and they go one at a time.
        """
        budget, more = self.budget, self.under_way + 1
        if budget.calls is not None and self.spent.calls + self.reserved.calls + more > budget.calls:
            return False
        for name in ("tokens", "money"):
            limit = getattr(budget, name)
            if limit is None or self.under_way == 0:
                continue
            used = getattr(self.spent, name) + getattr(self.reserved, name)
            if not self.largest.tokens or used + more * getattr(self.largest, name) > limit:
                return False
        return True

    def settle(self, cost: Spent) -> None:
        """Enter what one call has cost."""
        self.spent.add(cost)
        for name in ("calls", "prompt_tokens", "completion_tokens", "money"):
            setattr(self.largest, name, max(getattr(self.largest, name), getattr(cost, name)))

    def reserve(self, cost: Spent) -> None:
        """Keep back what the same work may cost again."""
        self.reserved = Spent(
            math.ceil(cost.calls * KEPT_BACK),
            math.ceil(cost.prompt_tokens * KEPT_BACK),
            math.ceil(cost.completion_tokens * KEPT_BACK),
            cost.money * KEPT_BACK,
            cost.seconds * KEPT_BACK,
        )
