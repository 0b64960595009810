"""Enqueue rollouts once, and again when a run resumes.

Invariant: attempts from before a resume stay on record and are not used: every rollout ends with an attempt
that began after the resume.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.store.base import Conflict, Store
from agentlightning.types import Rollout, RolloutStatus

RESUMED = "cancelled: the run broke off and went on"
"""Reason of attempts from before the resume."""
UNFINISHED = [status for status in RolloutStatus if not status.final]
"""Statuses of unfinished rollouts."""


async def enqueue(store: Store, rollouts: Sequence[Rollout]) -> list[str]:
    """Queue ``rollouts`` and return their ids. Rollouts that began before a resume are queued again, with
    the present settings.
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
    """Cancel unfinished rollouts from before a resume, so that no worker runs them too early; return how
    many. Their steps and evaluations queue them again. Rollouts of a user's algorithm are left to it.
    """
    cancelled = 0
    after: str | None = None
    while page := await store.query_rollouts(run_id=run_id, status=UNFINISHED, after=after):
        after = page[-1].rollout_id
        ours = [rollout for rollout in page if (rollout.group_id or "").startswith(f"{run_id}/")]
        cancelled += await cancel(store, ours, RESUMED)
    return cancelled


async def cancel(store: Store, rollouts: Sequence[Rollout], reason: str) -> int:
    """Cancel rollouts; return how many had not ended by themselves."""
    cancelled = 0
    for rollout in rollouts:
        try:
            await store.update_rollout(rollout.rollout_id, RolloutStatus.CANCELLED, reason=reason)
        except Conflict:
            continue
        cancelled += 1
    return cancelled
