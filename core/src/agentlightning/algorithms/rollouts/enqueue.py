"""Work for the queue: rollouts are put there once, and again when a run that broke off goes on.

Invariant: what an earlier life of the run did for these rollouts stays on record and is not used: every one
of them ends by an attempt that began after the run went on.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.store.base import Conflict, Store
from agentlightning.types import Rollout, RolloutStatus

RESUMED = "cancelled: the run broke off and went on"
"""Reason of the attempts that are left behind."""
UNFINISHED = [status for status in RolloutStatus if not status.final]
"""What a rollout is that has not ended."""


async def enqueue(store: Store, rollouts: Sequence[Rollout]) -> list[str]:
    """Queue ``rollouts``; those that an earlier life of the run has begun are queued again, to be tried as
    they would be tried today. Their ids.
    """
    known = await store.enqueue_many_rollouts(rollouts)
    for given, there in zip(rollouts, known, strict=True):
        if there.config != given.config:
            await store.update_rollout(there.rollout_id, config=given.config)
    begun = [r.rollout_id for r in known if r.attempts or r.status.final]
    if begun:
        await store.requeue_rollouts(begun, reason=RESUMED)
    return [r.rollout_id for r in known]


async def cancel_leftovers(store: Store, run_id: str) -> int:
    """Cancel what an earlier life of the run has left under way of its steps and evaluations, before any
    worker of this life takes it: it would run at once, to no use, and again in its turn. Of how many
    rollouts. What an algorithm of the user's own has queued is left to that.
    """
    cancelled = 0
    after: str | None = None
    while page := await store.query_rollouts(run_id=run_id, status=UNFINISHED, after=after):
        after = page[-1].rollout_id
        ours = [rollout for rollout in page if (rollout.group_id or "").startswith(f"{run_id}/")]
        cancelled += await cancel(store, ours, RESUMED)
    return cancelled


async def cancel(store: Store, rollouts: Sequence[Rollout], reason: str) -> int:
    """Cancel rollouts; how many of them had not just ended."""
    cancelled = 0
    for rollout in rollouts:
        try:
            await store.update_rollout(rollout.rollout_id, RolloutStatus.CANCELLED, reason=reason)
        except Conflict:
            continue
        cancelled += 1
    return cancelled
