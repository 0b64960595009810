"""Requeues rollouts of any status, so that a run goes on after a crash.

Invariant: a requeued rollout starts afresh. Its attempts so far stay on record, but may not write and do not
count against ``max_attempts``. The rollout's column ``forgiven`` holds the number of the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.store.sqlite.core import write
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.queue.attempts import AttemptStore
from agentlightning.types import AttemptStatus, Rollout, RolloutStatus


class RequeueStore(AttemptStore):
    """Rollouts that start afresh."""

    @write
    def requeue_rollouts(
        self, rollout_ids: Sequence[str], *, reason: str, request_id: str | None = None
    ) -> list[Rollout]:
        """Put rollouts back into the queue, also those that have ended. Return them in the order asked for.

        A live attempt is fenced and ended as unresponsive with the reason; an ended one stays as it is.
        Neither counts against ``max_attempts`` any more. A queued rollout that has had no attempt stays as it
        is.
        """
        return [self._requeue(rollout_id, reason) for rollout_id in dict.fromkeys(rollout_ids)]

    def _requeue(self, rollout_id: str, reason: str) -> Rollout:
        rollout = self._rollout(rollout_id)
        if rollout.status is RolloutStatus.QUEUING and not rollout.attempts:
            return rollout
        self._end_latest(rollout_id, AttemptStatus.UNRESPONSIVE, self.clock(), reason)
        self.cache.attempts.pop(rollout_id, None)
        rollout.status, rollout.end_time, rollout.reason = RolloutStatus.REQUEUING, None, None
        self.db.update(
            schema.rollouts,
            {"rollout_id": rollout_id},
            status="requeuing",
            end_time=None,
            reason=None,
            forgiven=rollout.attempts,
        )
        self.waiters.notify_queued(rollout.run_id)
        return rollout
