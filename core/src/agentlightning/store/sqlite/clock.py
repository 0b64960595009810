"""The store's clock: seconds since the epoch that never jump while the store is open.

Leases and timeouts are differences of times, and a person may set the wall clock. So it is read once, when
the store is opened, and the monotonic clock counts from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


class MonotonicWallClock:
    """The wall time at the start, plus the monotonic time that has passed since."""

    __slots__ = ("_monotonic", "_offset")

    def __init__(self, wall: Clock = time.time, monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return self._offset + self._monotonic()
