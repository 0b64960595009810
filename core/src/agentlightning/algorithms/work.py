"""Work for the queue: rollouts are put there once, and again when a run that broke off goes on.

Invariant: what an earlier life of the run did for these rollouts stays on record and is not used: every one
of them ends by an attempt that began after the run went on.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.store.base import Store
from agentlightning.types import Rollout

RESUMED = "cancelled: the run broke off and went on"
"""Reason of the attempts that are left behind."""


async def begin(store: Store, rollouts: Sequence[Rollout]) -> list[str]:
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
