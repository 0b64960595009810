"""Waiting for rollouts to end; it polls only where another process writes the file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from sqlalchemy import select

from agentlightning.store.base import NotFound
from agentlightning.store.bounds import check_seconds
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import InJson, compile_sql
from agentlightning.store.sqlite.queue.expiry import ExpiryStore
from agentlightning.types import Rollout, RolloutStatus

_r = schema.rollouts.c
_STATUS = compile_sql(select(_r.rollout_id, _r.status).where(InJson(_r.rollout_id)))
_LOOK_SECONDS = 0.2
"""Seconds between two reads of a file that another process writes."""


class EndWaitStore(ExpiryStore):
    """Callers that wait for an end."""

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all have ended, or ``timeout`` seconds. Return the ended ones in the order asked for."""
        check_seconds("timeout", timeout)
        return await self.writer.on_writer_loop(lambda: self._await_ends(list(rollout_ids), timeout))

    async def _await_ends(self, ids: list[str], timeout: float | None) -> list[Rollout]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self.waiters.ends(ids) as waiter:
                done = await self.writer.read(lambda: self._ended(ids))
                left = None if deadline is None else deadline - loop.time()
                over = self.waiters.closing or (left is not None and left <= 0)
                if over or len(done) == len(set(ids)):
                    return [await self.get_rollout_by_id(i) for i in ids if i in done]
                for rollout_id in done:
                    self.waiters.notify_ended(rollout_id)
                if self.db.read_only:  # no signal comes from the process that writes the file
                    left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
                else:
                    self._ensure_timer()
                await waiter.wait(left)

    def _ended(self, ids: Sequence[str]) -> set[str]:
        known = dict(self.db.all(_STATUS, ids=json.dumps(ids)))
        missing = [i for i in ids if i not in known]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise NotFound(f"no rollout {', '.join(missing[:3])}{more}")
        return {i for i, status in known.items() if RolloutStatus(status).final}
