"""Overdue attempts are ended in time, by one timer for the earliest of them.

No polling: the timer is set when an attempt with limits is leased, and again for the next one when it fires.
"""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import bindparam, func, or_, text, update

from agentlightning.store.base import StoreError
from agentlightning.store.sqlite import schema
from agentlightning.store.sqlite.database import compile_sql
from agentlightning.store.sqlite.queue.attempts import AttemptStore
from agentlightning.types import RolloutConfig

_a = schema.attempts
_log = logging.getLogger(__name__)
_MIN_DELAY = 0.05
"""Seconds between two looks, however many attempts are due."""
_RETRY_SECONDS = 5.0
"""Seconds after a look that failed."""


_CLAMP_FUTURE = compile_sql(
    update(_a)
    .where(
        text("attempts." + schema.OPEN_ATTEMPT),
        or_(_a.c.start_time > bindparam("opened"), _a.c.last_heartbeat_time > bindparam("opened")),
    )
    .values(
        start_time=func.min(_a.c.start_time, bindparam("opened")),
        last_heartbeat_time=func.min(_a.c.last_heartbeat_time, bindparam("opened")),
    )
)


class ExpiryTimer(AttemptStore):
    """Calls ``expire`` when the next attempt becomes overdue."""

    _timer: asyncio.TimerHandle | None = None
    _timer_loop: asyncio.AbstractEventLoop | None = None
    _expiring: asyncio.Task[None] | None = None

    def _clamp_future_times(self) -> None:
        """The file is open. Times of live attempts that lie ahead of now are now: the clock was set back
        meanwhile, and they would lengthen limits once it has reached them again.
        """
        self.db.execute(_CLAMP_FUTURE, opened=self.opened)

    def _watch_limits(self, config: RolloutConfig, now: float) -> None:
        limits = [s for s in (config.unresponsive_seconds, config.timeout_seconds) if s is not None]
        if limits:
            self.cache.lower_next_due(now + min(limits))
            self._arm(min(limits))

    def _ensure_expiry_timer(self) -> None:
        if self._timer is None or self._timer_loop is not asyncio.get_running_loop():
            due = self._next_due()
            if due is not None:
                self._arm(due - self.clock())

    def _arm(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + max(delay, _MIN_DELAY)
        timer = self._timer
        if timer is None or timer.cancelled() or timer.when() > when or self._timer_loop is not loop:
            if timer is not None:
                timer.cancel()
            self._timer_loop = loop
            self._timer = loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._expiring = asyncio.get_running_loop().create_task(self._expire_due())

    async def _expire_due(self) -> None:
        def work() -> float | None:
            self._end_overdue(self.clock())
            return self._next_due()

        try:
            due = await self._write("expire", work)
        except StoreError:
            _log.exception("overdue attempts could not be ended; the next try is in %g s", _RETRY_SECONDS)
            due = self.clock() + _RETRY_SECONDS
        if due is not None:
            self._arm(due - self.clock())

    def _stop_expiry_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiring is not None:
            self._expiring.cancel()
