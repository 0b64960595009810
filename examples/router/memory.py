"""The memory of a run at its highest: of this process, of all that it started, and of both together.

In a run on this machine, this process is the trainer with its gateway, store and agents, and what it started
is the engine.

On Linux the memory is the proportional set size (PSS), which counts a page that n processes share as 1/n for
each, so that the sum is what the run takes from the machine. The system walks over every page to tell it
(40 ms for 4 GB), so a thread reads the resident set size (RSS) four times a second, which costs nothing and
counts shared pages once for each process; it reads PSS where RSS is higher than ever, and every five seconds.
Elsewhere the memory is RSS. What rises and falls between two readings is not seen.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType

import psutil

SECONDS = 0.25
READINGS = 20
"""After so many readings of RSS, PSS is read in any case: fewer pages may be shared than before."""


class PeakMemory:
    """Measures from entry to exit, in MB of 10⁶ bytes. ``megabytes`` is the highest sum so far, ``own`` the
    highest of this process, ``started`` the highest of the others together; they may be of different times.
    """

    def __init__(self) -> None:
        self.megabytes = self.own = self.started = 0.0
        self._resident = 0
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
        own, *started = (found / 1e6 for found in self._each(_proportional))
        self.own = max(self.own, own)
        self.started = max(self.started, sum(started))
        self.megabytes = max(self.megabytes, own + sum(started))
        return own + sum(started)

    def _watch(self) -> None:
        for reading in itertools.count(1):
            if self._stop.wait(SECONDS):
                return
            resident = sum(self._each(_resident))
            if resident > self._resident or not reading % READINGS:
                self._resident = max(self._resident, resident)
                self.read()

    def _each(self, measure: Callable[[psutil.Process], int]) -> Iterator[int]:
        """Yield the bytes of each process, this one first."""
        for process in (self._own, *self._own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
                yield measure(process)


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _proportional(process: psutil.Process) -> int:
    full = process.memory_full_info()
    return int(getattr(full, "pss", full.rss))
