"""Waiting for rollouts to end; it polls only where another process writes the file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy import select

from agentlightning.store.base import NotFound
from agentlightning.store.bounds import check_seconds
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import chunks, compile_sql
from agentlightning.store.sqlite.queue.expiry import ExpiryStore
from agentlightning.types import Rollout

_r = schema.rollouts
_LOOK_SECONDS = 0.2
"""Seconds between two reads of a file that another process writes."""
_UNFINISHED = ("queuing", "preparing", "running", "requeuing")


class EndWaitStore(ExpiryStore):
    """Callers that wait for an end."""

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all have ended, or ``timeout`` seconds; the ended ones, in the order asked for."""
        check_seconds("timeout", timeout)
        return await self.writer.on_writer_loop(lambda: self._await_ends(list(rollout_ids), timeout))

    async def _await_ends(self, ids: list[str], timeout: float | None) -> list[Rollout]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            waiter = self.waiters.add_end_waiter(ids)
            try:
                done = await self.writer.read(lambda: self._ended(ids))
                left = None if deadline is None else deadline - loop.time()
                over = self.waiters.closing or (left is not None and left <= 0)
                if over or len(done) == len(set(ids)):
                    return [await self.get_rollout_by_id(i) for i in ids if i in done]
                for rollout_id in done:
                    waiter.discard(rollout_id)
                if self.db.read_only:  # no signal comes from the process that writes the file
                    left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
                else:
                    self._ensure_timer()
                await waiter.wait(left)
            finally:
                self.waiters.remove_end_waiter(waiter)

    def _ended(self, ids: Sequence[str]) -> set[str]:
        known: dict[str, str] = {}
        for part in chunks(ids):
            query = select(_r.c.rollout_id, _r.c.status).where(_r.c.rollout_id.in_(part))
            known.update((row[0], row[1]) for row in self.db.all(compile_sql(query)))
        missing = [i for i in ids if i not in known]
        if missing:
            raise NotFound(
                f"no rollout {', '.join(missing[:3])}"
                + (f" and {len(missing) - 3} more" * (len(missing) > 3))
            )
        return {i for i, status in known.items() if status not in _UNFINISHED}
