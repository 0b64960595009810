"""Cached state of live attempts, so that a write needs no query.

Invariant: the cache holds nothing that is not in the tables. Any other change of an attempt drops its entry,
and a rollback drops all entries: :meth:`StoreCache.clear` costs only the next queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentlightning.store.calls import CallIndex

_MAX_ATTEMPTS = 10_000
"""Cached attempts."""
_MAX_INDEX_BYTES = 128 << 20
"""Bytes of the call indexes of all attempts. A dropped index is made again from the table."""
_TRIM_EVERY = 64
"""Writes of calls between two checks of that limit."""


@dataclass(slots=True)
class CachedAttempt:
    """The latest attempt of a rollout, which may write."""

    attempt_id: str
    sequence_id: int
    fence: int
    arrivals: int
    """Number of its spans and calls."""
    running: bool
    """Whether attempt and rollout have the status ``running``."""


class StoreCache:
    """Live attempts by rollout id, their call indexes, and when the next attempt may be overdue."""

    def __init__(self) -> None:
        self.attempts: dict[str, CachedAttempt] = {}
        self.call_indexes: dict[str, CallIndex] = {}
        """By attempt id, the least recently used first."""
        self._writes = 0
        self.next_due: float | None = None
        """No attempt is overdue before this time; ``inf``: none ever will be; ``None``: unknown."""

    def put(self, rollout_id: str, live: CachedAttempt) -> CachedAttempt:
        """Cache an attempt."""
        if len(self.attempts) >= _MAX_ATTEMPTS:
            self.attempts.clear()
        self.attempts[rollout_id] = live
        return live

    def call_index(self, attempt_id: str, make: Callable[[], CallIndex]) -> CallIndex:
        """Return the index of an attempt's calls; ``make`` it if it is not cached.

        Once in a while, drop the least recently used indexes beyond the limit.
        """
        found = self.call_indexes.pop(attempt_id, None)
        index = self.call_indexes[attempt_id] = make() if found is None else found
        self._writes += 1
        if self._writes % _TRIM_EVERY == 0:
            size = sum(index.size for index in self.call_indexes.values())
            while size > _MAX_INDEX_BYTES:
                size -= self.call_indexes.pop(next(iter(self.call_indexes))).size
        return index

    def clear(self) -> None:
        """Drop everything."""
        self.attempts.clear()
        self.call_indexes.clear()
        self.next_due = None
