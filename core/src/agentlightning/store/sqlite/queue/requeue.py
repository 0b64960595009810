"""Requeues rollouts of any status, so that a run goes on after a crash.

Invariant: a requeued rollout starts afresh. Its attempts so far stay on record, but may not write and do not
count against ``max_attempts`` (column ``forgiven`` of the rollout: the number of the last of them).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, null, update

from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql
from agentlightning.store.sqlite.queue.attempts import AttemptStore
from agentlightning.types import AttemptStatus, Rollout, RolloutStatus

_r = schema.rollouts
_RESET = compile_sql(
    update(_r)
    .where(_r.c.rollout_id == bindparam("rollout"))
    .values(status="requeuing", end_time=null(), reason=null(), forgiven=_r.c.attempts)
)


class RequeueStore(AttemptStore):
    """Rollouts that start afresh."""

    async def requeue_rollouts(
        self, rollout_ids: Sequence[str], *, reason: str, request_id: str | None = None
    ) -> list[Rollout]:
        """Put rollouts back into the queue, also those that have ended; in the order asked for.

        A live attempt is fenced and ended as unresponsive with the reason; an ended one stays as it is.
        Neither counts against ``max_attempts`` any more. A queued rollout that has had no attempt stays as it
        is.
        """
        ids = list(dict.fromkeys(rollout_ids))

        def work() -> list[Rollout]:
            return [self._requeue(rollout_id, reason) for rollout_id in ids]

        return await self._write("requeue_rollouts", work, request_id, list[Rollout])

    def _requeue(self, rollout_id: str, reason: str) -> Rollout:
        rollout = self._rollout(rollout_id)
        if rollout.status is RolloutStatus.QUEUING and not rollout.attempts:
            return rollout
        self._end_latest(rollout_id, AttemptStatus.UNRESPONSIVE, self.clock(), reason)
        self.cache.attempts.pop(rollout_id, None)
        self.db.execute(_RESET, rollout=rollout_id)
        self.waiters.notify_queued(rollout.run_id)
        rollout.status, rollout.end_time, rollout.reason = RolloutStatus.REQUEUING, None, None
        return rollout
