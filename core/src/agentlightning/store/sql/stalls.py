"""Times at which the store's event loop stood still.

A blocking call on that loop stops the store too: signs of life lie unread until it goes on, and the timer
that looks for silent workers may then run before they are read. So limits of attempts do not count the time
that the store itself slept, as they do not count the time that it was down.

Invariant: a stall adds its own length to a limit at most. So a worker that died is found, however often the
store stands still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from agentlightning.store.sql.clock import Clock

TICK_SECONDS = 0.1
"""Seconds between two ticks of the loop. A tick that is late by as much again comes after a stall."""
_MAX_STALLS = 256
"""Stalls that are kept apart; beyond them the two oldest count as one that ended with the later."""


class LoopWatch:
    """Ticks on the store's event loop while ``needed()`` and notes the stalls of the loop.

    ``clock`` is the store's. A stall is as long as both this clock and the machine's monotonic one say: a
    clock that is set is no stall.
    """

    def __init__(self, clock: Clock, needed: Callable[[], bool]) -> None:
        self._clock, self._needed = clock, needed
        self._seen: tuple[float, float] | None = None
        """Monotonic time and the store's time at the last sign that the loop runs; ``None``: not watched."""
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stalls: list[tuple[float, float]] = []
        """Begin and end of each stall by the store's clock, in order."""

    def start(self) -> None:
        """Watch the running loop from now on. Time since another loop was watched was slept."""
        loop = asyncio.get_running_loop()
        if self._handle is not None and self._loop is loop:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.look()
        self._loop, self._seen = loop, (time.monotonic(), self._clock())
        self._handle = loop.call_later(TICK_SECONDS, self._tick)

    def look(self) -> None:
        """Note a stall that has just ended. Whoever compares a time with a limit calls this first."""
        if self._seen is None:
            return
        seen, self._seen = self._seen, (time.monotonic(), self._clock())
        lost = min(now - before for now, before in zip(self._seen, seen, strict=True))
        late = lost - TICK_SECONDS
        if late > TICK_SECONDS:
            self.note(self._seen[1] - late, self._seen[1])

    def note(self, begin: float, end: float) -> None:
        """Note a stall, by the store's clock."""
        self.stalls.append((begin, end))
        if len(self.stalls) > _MAX_STALLS:
            (a, b), (c, d), *rest = self.stalls
            self.stalls = [(c - (b - a), d), *rest]

    def slept(self, since: float) -> float:
        """Return the seconds after ``since`` in which the loop stood still."""
        return sum(max(0.0, end - max(begin, since)) for begin, end in self.stalls)

    def forget(self, before: float) -> None:
        """Drop the stalls that ended by the time ``before``."""
        self.stalls = [stall for stall in self.stalls if stall[1] > before]

    def stop(self) -> None:
        """Watch no further."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._seen = None

    def _tick(self) -> None:
        self.look()
        if self._needed():
            assert self._loop is not None
            self._handle = self._loop.call_later(TICK_SECONDS, self._tick)
        else:
            self.stop()
