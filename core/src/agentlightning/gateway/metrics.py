"""Counters of the gateway, as ``GET /metrics`` shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentlightning.types import Call


class Metrics:
    """Plain counters since the start. ``recorded`` counts only what the store acknowledged."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Status → records stored."""
        self.masked: Counter[str] = Counter()
        """Reason → records stored that must not be trained."""
        self.refused: Counter[str] = Counter()
        """Reason → requests refused."""
        self.streams: Counter[str] = Counter()
        """``passed`` or ``replayed`` → streamed answers."""
        self.lost_records = 0
        """Records the store did not take; their answers were withheld."""
        self.hook_errors = 0
        self.uncounted = 0
        """Refusals the store did not count."""

    def recorded(self, calls: Sequence[Call]) -> None:
        """Count stored records."""
        for call in calls:
            self.calls[call.status] += 1
            if call.masked:
                self.masked[call.masked] += 1

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "calls": dict(self.calls),
            "masked": dict(self.masked),
            "refused": dict(self.refused),
            "streams": dict(self.streams),
            "lost_records": self.lost_records,
            "hook_errors": self.hook_errors,
            "uncounted": self.uncounted,
        }
