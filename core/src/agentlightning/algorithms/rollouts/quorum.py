"""Quorum: go on with a step without its slowest rollouts.

A group is done when enough of its rollouts are. The rest are stragglers: cancelled, counted, and left out
of training like every failure (kind ``straggler``). Invariant: a group never waits for rollouts that cannot
come. If too many failed for a quorum, the wait lasts until all rollouts have ended.

It biases training towards fast answers, and no weight corrects that: where long answers are slow, a quorum
trains mostly on short ones, and so does ``hedge`` alone. Use it for agents whose environment is slow. It
makes a run depend on timing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentlightning.store.base import Conflict, Store
from agentlightning.types import Rollout, RolloutStatus, UsageError
from agentlightning.types.failure import SET_ASIDE_REASON, FailureTable, failure_kind_of_end


class BadQuorum(UsageError, ValueError):
    """A quorum that cannot be kept; the message names the field."""


class Quorum(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """When a group of ``n`` rollouts is done before all have ended. :class:`BadQuorum` for bad values."""

    k: int | None = None
    """This many of ``n`` suffice; ``None``: all ``n`` are needed."""
    deadline: float | None = None
    """Seconds from the start of the wait after which ``k`` suffice; ``None``: at once. Rollouts that
    started earlier (``async_steps``) have more time: it bounds a step's wait, not a rollout's time.
    """
    hedge: int = 0
    """Rollouts queued beyond ``n`` in each group; the first ``n`` that succeed count."""

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise BadQuorum(f"quorum.k = {self.k}: at least 1 rollout of a group must be waited for")
        if self.hedge < 0:
            raise BadQuorum(f"quorum.hedge = {self.hedge}: 0 or more extra rollouts for each group")
        if self.deadline is not None:
            if not (math.isfinite(self.deadline) and self.deadline > 0):
                raise BadQuorum(f"quorum.deadline = {self.deadline}: seconds, finite and above 0")
            if self.k is None:
                raise BadQuorum("quorum.deadline without quorum.k: say how many suffice after it")
        if self.k is None and not self.hedge:
            raise BadQuorum("quorum: give k (how many of a group suffice), hedge (how many extra), or both")

    def size(self, queued: int) -> int:
        """``n`` of a group of ``queued`` rollouts; :class:`BadQuorum` if this quorum does not fit it."""
        n = queued - self.hedge
        if n < 1:
            raise BadQuorum(f"quorum.hedge = {self.hedge}: all of a group of {queued} would be extra")
        if self.k is not None and self.k > n:
            raise BadQuorum(f"quorum.k = {self.k}: more than the {n} rollouts of a group")
        return n


def read_quorum(given: Mapping[str, Any] | None) -> Quorum | None:
    """The quorum of a configuration (``{k: 6, deadline: 30, hedge: 0}``); :class:`BadQuorum` says what is
    wrong.
    """
    if given is None:
        return None
    try:
        return msgspec.convert(dict(given), Quorum)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadQuorum):
            raise error.__cause__ from None
        raise BadQuorum(f"quorum: {error}; give k, deadline and hedge") from None


class QuorumResult(msgspec.Struct, kw_only=True):
    """Counts of a step's rollouts after the wait."""

    counted: list[str] = []
    """Ids of the rollouts that ended by themselves: credited, or failed by the failure table."""
    left_out: list[str] = []
    """Ids of the others: cancelled or set aside."""
    stragglers: int = 0
    """Too slow: their groups went on with fewer than ``n``."""
    hedged: int = 0
    """Surplus: ``n`` others of their groups ended first."""
    cancelled: int = 0
    """Of both, those that were cancelled; the others had just succeeded and were set aside."""
    short_groups: int = 0
    """Groups in which fewer than ``n`` rollouts succeeded."""
    waited_seconds: float = 0.0

    def add(self, other: QuorumResult) -> None:
        """Add the counts of other rollouts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def metrics(self) -> dict[str, float]:
        """For the step's metrics."""
        return {
            "quorum/stragglers": self.stragglers,
            "quorum/hedged": self.hedged,
            "quorum/cancelled": self.cancelled,
            "quorum/short_groups": self.short_groups,
            "quorum/waited_seconds": self.waited_seconds,
        }


async def wait_for_groups(
    store: Store,
    groups: Sequence[Sequence[Rollout]],
    quorum: Quorum | None = None,
    *,
    failure: FailureTable | None = None,
) -> QuorumResult:
    """Wait until every group has enough rollouts and cancel the rest; on return all have ended.

    ``groups``: the queued rollouts of each group, ``quorum.hedge`` extra ones included. Without a quorum, all
    are waited for. A failed rollout is as good as a successful one if ``failure`` gives its kind a reward.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    if quorum is None:
        ids = [rollout.rollout_id for group in groups for rollout in group]
        await store.wait_for_rollouts(ids)
        return QuorumResult(counted=ids, waited_seconds=clock() - began)
    waits = [_GroupWait(store, group, quorum, failure or {}, began) for group in groups]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(wait.run()) for wait in waits]
    out = QuorumResult(waited_seconds=clock() - began)
    for task in running:
        out.add(task.result())
    return out


class _GroupWait:
    """One group: wait, cancel the rest, count."""

    def __init__(
        self, store: Store, group: Sequence[Rollout], quorum: Quorum, failure: FailureTable, began: float
    ) -> None:
        self.store, self.quorum, self.failure, self.began = store, quorum, failure, began
        self.ids = [rollout.rollout_id for rollout in group]
        self.n = quorum.size(len(self.ids))

    async def run(self) -> QuorumResult:
        """Top to bottom."""
        waiting = await self._wait_for_enough()
        cancelled = [i for i in waiting if await self._cancel(i)]
        ended = await self.store.query_rollouts(rollout_ids=self.ids, limit=len(self.ids))
        good = sorted((r for r in ended if self._counts(r)), key=lambda r: (r.end_time or 0.0, r.sample))
        for rollout in good[self.n :]:
            reason = f"straggler: {self.n} others of the group were there first"
            await self.store.update_rollout(rollout.rollout_id, metadata={SET_ASIDE_REASON: reason})
        surplus = [rollout.rollout_id for rollout in good[self.n :]]
        left_out = {*cancelled, *surplus}
        counting = min(len(good), self.n)
        stragglers = min(len(cancelled), self.n - counting)
        return QuorumResult(
            counted=[i for i in self.ids if i not in left_out],
            left_out=[i for i in self.ids if i in left_out],
            stragglers=stragglers,
            hedged=len(left_out) - stragglers,
            cancelled=len(cancelled),
            short_groups=int(counting < self.n),
        )

    async def _wait_for_enough(self) -> list[str]:
        """Wait until enough succeeded or all ended; returns the ids of the rest."""
        clock = asyncio.get_running_loop().time
        waits = {asyncio.create_task(self.store.wait_for_rollouts([i])): i for i in self.ids}
        pending, good = set(waits), 0
        try:
            while pending:
                left = self._seconds_left(clock())
                if good >= (self.n if left != 0 else self.quorum.k or self.n):
                    break
                ended, pending = await asyncio.wait(
                    pending, timeout=left or None, return_when=asyncio.FIRST_COMPLETED
                )
                good += sum(self._counts(rollout) for task in ended for rollout in task.result())
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        return [i for task, i in waits.items() if task in pending]

    def _seconds_left(self, now: float) -> float | None:
        """Seconds until ``k`` suffice, 0 once they do; ``None``: never."""
        if self.quorum.k is None:
            return None
        return max(0.0, self.began + (self.quorum.deadline or 0.0) - now)

    def _counts(self, rollout: Rollout) -> bool:
        """Whether it counts: it succeeded, or the failure table gives it a reward."""
        if rollout.status != RolloutStatus.FAILED:
            return rollout.status == RolloutStatus.SUCCEEDED
        action = self.failure.get(failure_kind_of_end(rollout.status, rollout.reason))
        return action is not None and action.reward is not None

    async def _cancel(self, rollout_id: str) -> bool:
        """Stop a rollout; ``False`` if it has just ended."""
        reason = f"straggler: the others of the group sufficed ({self.quorum.k or self.n} of {self.n})"
        try:
            await self.store.update_rollout(rollout_id, RolloutStatus.CANCELLED, reason=reason)
        except Conflict:
            return False
        return True
