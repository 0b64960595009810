"""Count what capture could not record, by reason.

Invariant: capture counts everything that it leaves out, so that a ledger can explain a missing record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import RLock

from agentlightning.capture.fork import after_fork_in_child


class Counts:
    """Thread-safe counters, reason → times."""

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)
        self._counts: Counter[str] = Counter()
        self.listener: Callable[[str, int], None] | None = None
        """Called with each new count, where another process keeps the ledger (``agl run``)."""

    def _renew(self) -> None:
        self._lock = RLock()  # a destructor may count while its thread counts

    def add(self, reason: str, times: int = 1) -> None:
        """Count ``reason``."""
        with self._lock:
            self._counts[reason] += times
        if self.listener is not None:
            self.listener(reason, times)

    def snapshot(self) -> dict[str, int]:
        """Return the counts as they are now."""
        with self._lock:
            return dict(self._counts)

    def clear(self) -> None:
        """Set all counters to zero (a new run, a test)."""
        with self._lock:
            self._counts.clear()


COUNTS = Counts()
"""The counts of this process. Reasons: ``late-span, span-outside-attempt, sink-error, convert-stringified,
wire-error, wire-unavailable, wire-not-read, identity-error, bad-ids, …``."""
