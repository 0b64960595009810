"""The budget of a run's calls: what was spent, whether the next call may begin, and when it must wait.

A service that trains for money is counted beside them, by the metrics of each step's report.

Invariants: a refused call reaches no engine. A call that begins holds its place until its record is stored
and counted, so that calls under way are never forgotten. What was spent is what the store has on record.

Gateways that are processes of their own (:attr:`Spending.shared`) do not see each other's calls: each reads
them from the store, once in :data:`AGE` seconds. So the calls of the last second, and those under way, may
exceed a limit of the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentlightning.gateway.errors import CallFailure
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CallGuard
from agentlightning.store.base import Store
from agentlightning.store.pages import pages
from agentlightning.types import Call, RolloutStatus, StepReport
from agl_gateway.budget.limits import Account, Budget, BudgetSpent, Spent
from agl_gateway.budget.prices import REFUSED, Pricing

log = logging.getLogger(__name__)
SPENT_CODE = "budget-spent"
"""Code of the error that an agent gets."""
ROLLOUTS = 10_000
"""Rollouts whose accounts are kept; others are read from the store again."""
PAGE = 500
AGE = 1.0
"""Seconds for which what was read of other gateways' calls is new enough."""


class RunReader:
    """Sums up what the store has on record of a run. Rollouts that have ended are read once."""

    def __init__(self, run_id: str, pricing: Pricing) -> None:
        self.run, self._pricing = run_id, pricing
        self._costs: dict[str, tuple[Spent, int]] = {}
        """Rollout → what it has spent, and its refused calls."""
        self._live: set[str] = set()
        self._last: str | None = None
        """The latest rollout that is known."""
        self._reading: asyncio.Task[None] | None = None
        self._read_at = -AGE

    async def changed(self, store: Store) -> bool:
        """Read the store, unless that was done within :data:`AGE` seconds. Return whether it was read."""
        if self._reading is None:
            if time.monotonic() - self._read_at < AGE:
                return False
            self._reading = asyncio.create_task(self._read(store))
        await asyncio.shield(self._reading)
        return True

    @property
    def spent(self) -> Spent:
        """What the run has spent, its time excepted."""
        found = Spent()
        for cost, _ in self._costs.values():
            found.add(cost)
        return found

    @property
    def refused(self) -> int:
        """Refused calls."""
        return sum(refused for _, refused in self._costs.values())

    async def _read(self, store: Store) -> None:
        try:
            fresh: set[str] = set()
            page = await store.query_rollouts(run_id=self.run, limit=PAGE, after=self._last)
            while page:
                fresh |= {rollout.rollout_id for rollout in page}
                self._last = page[-1].rollout_id
                page = await store.query_rollouts(run_id=self.run, limit=PAGE, after=self._last)
            live: set[str] = set()
            unfinished = [status for status in RolloutStatus if not status.final]
            async for some in pages(store.query_rollouts, run_id=self.run, status=unfinished):
                live |= {rollout.rollout_id for rollout in some}
            for rollout_id in self._live | fresh | live:
                calls = await store.query_calls(rollout_id, None)
                refused = sum(call.masked == REFUSED and call.choice == 0 for call in calls)
                self._costs[rollout_id] = self._pricing.cost(calls), refused
            self._live = live
            self._read_at = time.monotonic()
        finally:
            self._reading = None


@dataclass(slots=True)
class _RolloutAccount:
    account: Account
    began: float


@dataclass(eq=False)
class Spending(CallGuard):
    """The accounts of a run and of its rollouts, as one gateway has them."""

    run: Budget = field(default_factory=Budget)
    per_rollout: Budget = field(default_factory=Budget)
    pricing: Pricing = field(default_factory=Pricing)
    clock: Callable[[], float] = time.time
    refused: int = 0
    """Calls that were refused because a budget is spent."""
    earlier_seconds: float = 0.0
    """Of the run's earlier lives."""
    name = "budget"

    def __post_init__(self) -> None:
        self.account = Account(self.run)
        self.kept = Spent()
        """What is kept back for the end."""
        self.training: dict[str, float] = {}
        """Policy → the money that a service has asked for its training in this life of the run."""
        self.earlier_training = 0.0
        """The same of the run's earlier lives, of all policies."""
        self.shared = False
        """Other gateways forward calls of the run too."""
        self._began = self.clock()
        self._before = Spent()
        """What had been spent when this life of the run began."""
        self._rollouts: OrderedDict[str, _RolloutAccount] = OrderedDict()
        self._changed = asyncio.Event()
        self._store: Store | None = None
        self._reader: RunReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process: the accounts, and nothing of this one's store and event loop."""
        reader = self._reader and RunReader(self._reader.run, self.pricing)
        mine: dict[str, Any] = {
            "_store": None,
            "_reader": reader,
            "_changed": None,
            "_rollouts": OrderedDict(),
        }
        return {**self.__dict__, **mine}

    # -------------------------------------------------------------------------------------------- the run
    async def begin(self, store: Store, run_id: str, recorded: Mapping[str, Any]) -> None:
        """Count the calls that the run's earlier lives have left in the store. ``recorded``: their last
        :meth:`summary`, which alone knows their time and what is kept back.
        """
        self._store = store
        self._reader = RunReader(run_id, self.pricing)
        self.earlier_seconds = float(recorded.get("spent", {}).get("seconds", 0.0))
        self.refused = int(recorded.get("refused", 0))
        self.kept = Spent.read(recorded.get("kept", {}))
        self.earlier_training = float(recorded.get("training", 0.0))
        self.account.reserved = self.kept.copy()
        if recorded:
            await self._reader.changed(store)
            self._take(self._reader)
        self._before = self.spent

    def share(self) -> None:
        """Read from now on what other gateways have put on record."""
        self.shared = True

    def join(self, store: Store) -> None:
        """Read ``store``; the run's own process has begun the accounts."""
        self._store, self._changed = store, asyncio.Event()

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

    async def exhausted(self, *, last: bool = False) -> str | None:
        """Which limit of the run is reached, if any is. ``last``: what was kept back may be spent now."""
        await self._refresh()
        if last:
            self.account.reserved = Spent()
            self._wake()
        why = self.account.why_spent(self.seconds)
        return None if why is None else f"{self.name}: {why}"

    def keep_back(self) -> None:
        """Reserve for the end what this life of the run has spent so far, and a tenth more."""
        cost = self.spent
        cost.add(self._before, -1)
        if cost.calls:  # none if the evaluation was made before the run was resumed
            self.account.reserve(cost)
            self.kept = self.account.reserved.copy()

    async def _refresh(self) -> None:
        """Take what other gateways have put on record."""
        store, reader = self._store, self._reader
        if self.shared and store is not None and reader is not None and await reader.changed(store):
            self._take(reader)
            self.refused = reader.refused

    def _take(self, reader: RunReader) -> None:
        """What was spent is what the store has on record, and training."""
        self.account.spent = reader.spent
        self.account.spent.money += self.trained

    @property
    def trained(self) -> float:
        """The money that training has cost so far."""
        return self.earlier_training + sum(self.training.values())

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        """Enter what a service has asked for a step beside its calls."""
        before = self.trained
        self.training[report.policy] = self.pricing.training(report.policy, report.metrics)
        self.account.spent.money += self.trained - before

    def summary(self) -> dict[str, Any]:
        """Return limits, what was spent, and refused calls, for the run's summary and record."""
        more = {"unpriced": dict(self.pricing.unpriced)} if self.pricing.unpriced else {}
        limits = {"limits": self.run.given(), "per_rollout": self.per_rollout.given()}
        kept = {"kept": self.kept.shown()} if self.kept.calls else {}
        trained = {"training": round(self.trained, 6)} if self.trained else {}
        spent = {"spent": self.spent.shown(), **trained}
        return {**limits, **spent, "refused": self.refused, **kept, **more}

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
    def admit(self, rollout_id: str) -> AbstractAsyncContextManager[None]:
        """Hold a place for one call; raise :class:`CallFailure` if a budget is spent."""
        return self._place(rollout_id) if self.limited else nullcontext()

    @asynccontextmanager
    async def _place(self, rollout_id: str) -> AsyncIterator[None]:
        try:
            await self._refresh()
            rollout = await self._rollout(rollout_id) if self.per_rollout.limited else None
        except Exception as error:
            log.exception("the budget of rollout %s could not be read", rollout_id)
            message = f"the budget could not be read: {type(error).__name__}"
            raise CallFailure(503, "store-failed", message) from None
        accounts = [self.account, *([rollout.account] if rollout else [])]
        try:
            await self._wait_for_room(rollout, accounts)
        except BudgetSpent as error:
            self.refused += 1
            raise CallFailure(403, SPENT_CODE, str(error), retry=False, masked=REFUSED) from None
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

    def count(self, calls: Sequence[Call]) -> None:
        """Count calls of one rollout that are on record."""
        cost = self.pricing.cost(calls)
        self.account.settle(cost)
        if calls and (known := self._rollouts.get(calls[0].rollout_id)) is not None:
            known.account.settle(cost)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _rollout(self, rollout_id: str) -> _RolloutAccount:
        """Return the account of a rollout; what its earlier attempts spent is read from the store."""
        known, store = self._rollouts.get(rollout_id), self._store
        if known is None:
            assert store is not None
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
