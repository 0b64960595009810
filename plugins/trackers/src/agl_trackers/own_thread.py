"""Calls of one tracker on a thread of its own, one after another.

A service may be slow, or gone: the run does not wait for it. Invariant: calls are made in the order in which
they were given; each is made, has failed, or is counted as left behind.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class OwnThread:
    """A thread that makes calls. ``failed`` gets the error of each that raises, on that thread."""

    def __init__(self, name: str, failed: Callable[[Exception], None]) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failed = failed
        # A daemon: a service that never answers does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Make ``call`` after those before it."""
        self._calls.put(call)

    def close(self, patience: float) -> int:
        """Wait at most ``patience`` seconds until all calls are made; return the number of those left
        behind.
        """
        self._calls.put(None)
        self._thread.join(patience)
        return self._calls.qsize() if self._thread.is_alive() else 0

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                self._failed(error)
