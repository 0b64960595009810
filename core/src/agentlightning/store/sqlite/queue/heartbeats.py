"""Heartbeats: signs of life of a worker and of the attempts it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, text

from agentlightning.store.sqlite.core import StoreRefusal
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given
from agentlightning.store.sqlite.queue.attempts import AttemptStore

_a = schema.attempts.c
_ROLLOUT = compile_sql(select(_a.rollout_id).where(given(_a.attempt_id), text(schema.OPEN_ATTEMPT)))


class HeartbeatStore(AttemptStore):
    """Workers that are alive."""

    async def heartbeat(
        self,
        worker_id: str,
        attempt_ids: Sequence[str] = (),
        stats: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> list[str]:
        """Note a sign of life of a worker and of the attempts it runs.

        Returns the attempts it has lost (ended, fenced, unknown). It should stop them: their writes are
        refused.
        """

        def work() -> list[str]:
            now = self.clock()
            self._set_worker(worker_id, "busy" if attempt_ids else "idle", now, stats=stats)
            return [attempt_id for attempt_id in attempt_ids if not self._heartbeat_attempt(attempt_id, now)]

        return await self._write("heartbeat", work, request_id, list[str])

    def _heartbeat_attempt(self, attempt_id: str, now: float) -> bool:
        row = self.db.one(_ROLLOUT, attempt_id=attempt_id)
        if row is None:
            return False
        try:
            self._touch(row[0], self._writable_attempt(row[0], attempt_id, "heartbeat"), now)
        except StoreRefusal:  # the result names it; nothing was lost, so nothing is counted
            return False
        return True
