"""Time: the store's clock, and the timer that ends overdue attempts.

Leases and timeouts are differences of times, and a person may set the wall clock. So the store reads the wall
clock once, when it opens, and counts from there with the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

Clock = Callable[[], float]
_MIN_DELAY = 0.05
"""Seconds between two runs of the timer, however many attempts are due."""


def monotonic_clock(wall: Clock = time.time, monotonic: Clock = time.monotonic) -> Clock:
    """Return a clock: the wall time now, plus the monotonic time that passes from now on."""
    offset = wall() - monotonic()
    return lambda: offset + monotonic()


class Timer(Protocol):
    """What ends overdue attempts in time."""

    @property
    def armed(self) -> bool:
        """Whether it will look at the attempts again without being told."""

    def arm(self, delay: float) -> None:
        """Look at the attempts in ``delay`` seconds, unless that is done before."""

    def stop(self) -> None:
        """Look at nothing any more."""


class ExpiryTimer:
    """Runs ``expire`` when the next attempt is overdue; nothing polls.

    ``expire`` returns the seconds until it must run again, or ``None``.
    """

    def __init__(self, expire: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiring: asyncio.Task[None] | None = None

    @property
    def armed(self) -> bool:
        """Whether the timer will fire on the running loop."""
        return self._handle is not None and self._loop is asyncio.get_running_loop()

    def arm(self, delay: float) -> None:
        """Fire in ``delay`` seconds, unless the timer already fires before that."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(delay, _MIN_DELAY)
        if self._handle is not None:
            if self._loop is loop and self._handle.when() <= when:
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
        """Cancel the timer and the run that it started."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._expiring is not None:
            self._expiring.cancel()
