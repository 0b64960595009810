"""The budget of a run's calls: what was spent, whether the next call may begin, and when it must wait.

Invariants: a refused call reaches no engine. A call that begins holds its place until its record is stored
and counted, so that calls under way are never forgotten. What was spent is what the store has on record.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentlightning.budget.limits import Account, Budget, BudgetSpent, Spent
from agentlightning.budget.prices import Pricing
from agentlightning.gateway.errors import CallFailure
from agentlightning.store.base import Store
from agentlightning.store.pages import pages
from agentlightning.types import Call

SPENT_CODE = "budget-spent"
"""Code of the error that an agent gets."""
ROLLOUTS = 10_000
"""Rollouts whose accounts are kept; others are read from the store again."""


@dataclass(slots=True)
class _RolloutAccount:
    account: Account
    began: float


@dataclass(eq=False)
class Spending:
    """The accounts of a run and of its rollouts."""

    run: Budget = field(default_factory=Budget)
    per_rollout: Budget = field(default_factory=Budget)
    pricing: Pricing = field(default_factory=Pricing)
    given: bool = False
    """Whether the run has a budget or prices, so that reports show what was spent."""
    clock: Callable[[], float] = time.time
    refused: int = 0
    """Calls that were refused because a budget is spent."""
    earlier_seconds: float = 0.0
    """Of the run's earlier lives."""

    def __post_init__(self) -> None:
        self.account = Account(self.run)
        self.kept = Spent()
        """What is kept back for the end."""
        self._began = self.clock()
        self._rollouts: OrderedDict[str, _RolloutAccount] = OrderedDict()
        self._changed = asyncio.Event()

    # -------------------------------------------------------------------------------------------- the run
    @property
    def limited(self) -> bool:
        """Whether calls have to be checked."""
        return self.run.limited or self.per_rollout.limited

    @property
    def seconds(self) -> float:
        """Seconds of the run, those of its earlier lives included."""
        return self.earlier_seconds + max(0.0, self.clock() - self._began)

    @property
    def spent(self) -> Spent:
        """What the run has spent so far, a copy."""
        found = self.account.spent.copy()
        found.seconds = self.seconds
        return found

    def why_ended(self) -> str | None:
        """Return which limit of the run is reached, ``None`` if none is."""
        return self.account.why_spent(self.seconds)

    def keep_back(self, since: Spent) -> None:
        """Reserve for the end what was spent ``since`` then, and a tenth more."""
        cost = self.spent
        cost.add(since, -1)
        if cost.calls:  # none if the evaluation was made before the run was resumed
            self.account.reserve(cost)
            self.kept = self.account.reserved.copy()

    def release(self) -> None:
        """Let the rest of the run spend what was kept back."""
        self.account.reserved = Spent()
        self._wake()

    async def resume(self, store: Store, run_id: str, recorded: Mapping[str, Any]) -> None:
        """Count the calls that the run's earlier lives have left in the store. ``recorded``: their last
        :meth:`summary`, which alone knows their time and what is kept back.
        """
        self.earlier_seconds = float(recorded.get("spent", {}).get("seconds", 0.0))
        self.refused = int(recorded.get("refused", 0))
        self.kept = Spent.read(recorded.get("kept", {}))
        self.account.reserved = self.kept.copy()
        ids = [one.rollout_id async for page in pages(store.query_rollouts, run_id=run_id) for one in page]
        for rollout_id in ids:
            self.account.spent.add(self.pricing.cost(await store.query_calls(rollout_id, None)))

    def summary(self) -> dict[str, Any]:
        """Return limits, what was spent, and refused calls, for the run's summary and record."""
        more = {"unpriced": dict(self.pricing.unpriced)} if self.pricing.unpriced else {}
        limits = {"limits": self.run.given(), "per_rollout": self.per_rollout.given()}
        kept = {"kept": self.kept.shown()} if self.kept.calls else {}
        return {**limits, "spent": self.spent.shown(), "refused": self.refused, **kept, **more}

    def metrics(self) -> dict[str, float]:
        """Return what was spent, as metrics of a step."""
        spent = self.spent
        return {
            "budget/calls": float(spent.calls),
            "budget/tokens": float(spent.tokens),
            "budget/money": spent.money,
            "budget/seconds": spent.seconds,
            "budget/refused": float(self.refused),
        }

    # ------------------------------------------------------------------------------------------ the calls
    def place(self, store: Store, rollout_id: str) -> AbstractAsyncContextManager[None]:
        """Hold a place for one call; raise :class:`CallFailure` if a budget is spent."""
        return self._place(store, rollout_id) if self.limited else nullcontext()

    @asynccontextmanager
    async def _place(self, store: Store, rollout_id: str) -> AsyncIterator[None]:
        rollout = await self._rollout(store, rollout_id) if self.per_rollout.limited else None
        accounts = [self.account, *([rollout.account] if rollout else [])]
        try:
            await self._wait_for_room(rollout, accounts)
        except BudgetSpent as error:
            self.refused += 1
            raise CallFailure(403, SPENT_CODE, str(error), retry=False) from None
        try:
            yield
        finally:
            for account in accounts:
                account.under_way -= 1
            self._wake()

    async def _wait_for_room(self, rollout: _RolloutAccount | None, accounts: Sequence[Account]) -> None:
        """Wait until a call may begin, and begin it. Raise :class:`BudgetSpent` when none may any more."""
        while True:
            if (why := self.account.why_spent(self.seconds)) is not None:
                raise BudgetSpent(f"the budget of the run is spent: {why}")
            if rollout is not None:
                why = rollout.account.why_spent(max(0.0, self.clock() - rollout.began))
                if why is not None:
                    raise BudgetSpent(f"the budget of this rollout is spent: {why}")
            if all(account.has_room() for account in accounts):
                for account in accounts:
                    account.under_way += 1
                return
            await self._changed.wait()

    def count(self, calls: Sequence[Call], rollout: str | None) -> None:
        """Count calls that are on record; ``rollout``: theirs, if it has a budget too."""
        cost = self.pricing.cost(calls)
        self.account.settle(cost)
        if rollout is not None and (known := self._rollouts.get(rollout)) is not None:
            known.account.settle(cost)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _rollout(self, store: Store, rollout_id: str) -> _RolloutAccount:
        """Return the account of a rollout; what its earlier attempts spent is read from the store."""
        known = self._rollouts.get(rollout_id)
        if known is None:
            attempts = await store.query_attempts(rollout_id)
            began = min((one.start_time for one in attempts if one.start_time), default=self.clock())
            calls = await store.query_calls(rollout_id, None)
            known = self._rollouts.get(rollout_id)  # another of its calls may have read it meanwhile
            if known is None:
                known = _RolloutAccount(Account(self.per_rollout), began)
                known.account.settle(self.pricing.cost(calls))
                known.account.largest = Spent()  # a sum says nothing about one call
                self._rollouts[rollout_id] = known
        self._rollouts.move_to_end(rollout_id)
        self._forget()
        return known

    def _forget(self) -> None:
        """Drop accounts beyond ``ROLLOUTS`` that no call is under way of, the oldest first."""
        if len(self._rollouts) > ROLLOUTS:
            idle = next((name for name, one in self._rollouts.items() if not one.account.under_way), None)
            if idle is not None:
                del self._rollouts[idle]
