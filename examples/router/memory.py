"""The memory of a run: of this process and of all that it started, together, at its highest.

A thread reads the memory four times a second. On Linux it reads the proportional set size (PSS), which
counts a page that n processes share as 1/n for each, so that the sum is what the run takes from the
machine. Elsewhere it reads the resident set size, which counts shared pages once for each process. What
rises and falls between two readings is not seen.
"""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

SECONDS = 0.25


class PeakMemory:
    """Measures from entry to exit; ``megabytes`` is the highest sum so far (MB of 10⁶ bytes)."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._own = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.read()

    def read(self) -> float:
        """Return the megabytes of all processes now, and keep the highest."""
        now = sum(map(_bytes, [self._own, *self._own.children(recursive=True)])) / 1e6
        self.megabytes = max(self.megabytes, now)
        return now

    def _watch(self) -> None:
        while not self._stop.wait(SECONDS):
            self.read()


def _bytes(process: psutil.Process) -> int:
    """Return the memory of one process; 0 for one that has just ended."""
    try:
        full = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0
    return int(getattr(full, "pss", full.rss))
