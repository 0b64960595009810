"""Quorum: go on with a step without its slowest rollouts.

A group is done when enough of its rollouts are done. The rest are stragglers: cancelled, counted, and left
out of training like every failure (kind ``straggler``). Invariant: a group never waits for rollouts that
cannot come. If too many rollouts failed for a quorum, the wait lasts until all of them have ended.

A quorum biases training towards fast answers, and no weight corrects the bias: where long answers are slow, a
quorum trains mostly on short ones, and so does ``hedge`` alone. Use a quorum for agents whose environment is
slow. A quorum makes a run depend on timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentlightning.store.base import Conflict, Store
from agentlightning.types import Rollout, RolloutStatus
from agentlightning.types.failure import SET_ASIDE_REASON, FailureTable, failure_kind_of_end
from agl_schedules.settings import Quorum, group_size_needed

METRICS = ("quorum/stragglers", "quorum/hedged", "quorum/cancelled", "quorum/short_groups")
"""Counts of a step with a quorum (:func:`wait_for_groups`)."""


async def wait_for_groups(
    store: Store,
    groups: Sequence[Sequence[Rollout]],
    quorum: Quorum,
    *,
    failure: FailureTable | None = None,
) -> dict[str, float]:
    """Wait until every group has enough rollouts and cancel the rest; on return all have ended.

    ``groups``: the queued rollouts of each group, with the ``quorum.hedge`` extra ones. A failed rollout is
    as good as a successful one if ``failure`` gives its kind a reward. Returns metrics:

    - ``quorum/stragglers``: rollouts that were too slow; their groups went on with fewer than ``n``.
    - ``quorum/hedged``: surplus rollouts; ``n`` others of their groups ended first.
    - ``quorum/cancelled``: those of both kinds that were cancelled; the others had just succeeded.
    - ``quorum/short_groups``: groups in which fewer than ``n`` rollouts succeeded.
    - ``quorum/waited_seconds``.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    waits = [_GroupWait(store, group, quorum, failure or {}, began) for group in groups]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(wait.run()) for wait in waits]
    counts: dict[str, float] = {name: sum(task.result()[name] for task in running) for name in METRICS}
    return counts | {"quorum/waited_seconds": clock() - began}


class _GroupWait:
    """Waits for one group, cancels the rest of it and counts."""

    def __init__(
        self, store: Store, group: Sequence[Rollout], quorum: Quorum, failure: FailureTable, began: float
    ) -> None:
        self.store, self.quorum, self.failure, self.began = store, quorum, failure, began
        self.ids = [rollout.rollout_id for rollout in group]
        self.n = group_size_needed(quorum, len(self.ids))

    async def run(self) -> dict[str, int]:
        """Wait for the group and return its counts, by the names in ``METRICS``."""
        waiting = await self._wait_for_enough()
        cancelled = [i for i in waiting if await self._cancel(i)]
        ended = await self.store.query_rollouts(rollout_ids=self.ids, limit=len(self.ids))
        good = sorted((r for r in ended if self._counts(r)), key=lambda r: (r.end_time or 0.0, r.sample))
        surplus = good[self.n :]
        for rollout in surplus:
            reason = f"straggler: {self.n} others of the group were there first"
            await self.store.update_rollout(rollout.rollout_id, metadata={SET_ASIDE_REASON: reason})
        missing = self.n - min(len(good), self.n)
        stragglers = min(len(cancelled), missing)
        hedged = len(cancelled) + len(surplus) - stragglers
        return dict(zip(METRICS, (stragglers, hedged, len(cancelled), int(missing > 0)), strict=True))

    async def _wait_for_enough(self) -> list[str]:
        """Wait until enough rollouts succeeded or all ended; return the ids of the rest."""
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
        """Return the seconds until ``k`` suffice, 0 once they do; ``None`` if all ``n`` are needed."""
        if self.quorum.k is None:
            return None
        return max(0.0, self.began + (self.quorum.deadline or 0.0) - now)

    def _counts(self, rollout: Rollout) -> bool:
        """Whether the rollout succeeded, or the failure table gives its failure a reward."""
        if rollout.status != RolloutStatus.FAILED:
            return rollout.status == RolloutStatus.SUCCEEDED
        action = self.failure.get(failure_kind_of_end(rollout.status, rollout.reason))
        return action is not None and action.reward is not None

    async def _cancel(self, rollout_id: str) -> bool:
        """Cancel a rollout; ``False`` if it has just ended."""
        reason = f"straggler: the others of the group sufficed ({self.quorum.k or self.n} of {self.n})"
        try:
            await self.store.update_rollout(rollout_id, RolloutStatus.CANCELLED, reason=reason)
        except Conflict:
            return False
        return True
