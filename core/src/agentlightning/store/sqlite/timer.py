"""One timer for the attempt that becomes overdue first.

Nothing polls: the timer is set when an attempt with limits is leased, and for the next attempt when it fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_MIN_DELAY = 0.05
"""Seconds between two runs, however many attempts are due."""


class ExpiryTimer:
    """Runs ``expire`` in time. It returns the seconds until it is to run again, or ``None``."""

    def __init__(self, expire: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiring: asyncio.Task[None] | None = None

    @property
    def armed(self) -> bool:
        """Whether it will fire on the running loop."""
        return self._handle is not None and self._loop is asyncio.get_running_loop()

    def arm(self, delay: float) -> None:
        """Fire in ``delay`` seconds, unless it is set to fire before."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(delay, _MIN_DELAY)
        if self._handle is not None:
            if self._loop is loop and not self._handle.cancelled() and self._handle.when() <= when:
                return
            self._handle.cancel()
        self._loop, self._handle = loop, loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._expiring = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        delay = await self._expire()
        if delay is not None:
            self.arm(delay)

    def stop(self) -> None:
        """Cancel the timer and what it runs."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._expiring is not None:
            self._expiring.cancel()
