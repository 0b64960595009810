"""Cached state of live attempts, so that a write needs no query.

Invariant: the cache holds nothing that is not in the tables. Any other change of an attempt drops its entry,
and a rollback drops all entries: :meth:`StoreCache.clear` costs only the next queries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from agentlightning.store.calls import CallIndex

_MAX_ATTEMPTS = 10_000
"""Cached attempts."""
_LEAST_INDEX_BYTES = 128 << 20
_SHARE = 32
"""The call indexes of all attempts take at most this part of the machine's memory."""


def _max_index_bytes() -> int:
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        memory = 0
    return max(_LEAST_INDEX_BYTES, memory // _SHARE)


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
        self.max_index_bytes = _max_index_bytes()
        """A dropped index is made again from the table."""
        self._indexes: dict[str, tuple[CallIndex, int]] = {}
        """Attempt id → index, and its bytes when it was last used; the least recently used first."""
        self._index_bytes = 0
        self.next_due: float | None = None
        """No attempt is overdue before this time; ``inf``: none ever will be; ``None``: unknown."""

    def put(self, rollout_id: str, live: CachedAttempt) -> CachedAttempt:
        """Cache an attempt."""
        if len(self.attempts) >= _MAX_ATTEMPTS:
            self.attempts.clear()
        self.attempts[rollout_id] = live
        return live

    def call_index(self, attempt_id: str, make: Callable[[], CallIndex]) -> CallIndex:
        """Return the index of an attempt's calls; ``make`` it if it is not cached. Drop others beyond the
        limit, the last one used first: attempts take turns, so it is the one that is needed last.
        """
        index = self.drop_call_index(attempt_id) or make()
        size = index.size
        while self._indexes and self._index_bytes + size > self.max_index_bytes:
            self._index_bytes -= self._indexes.popitem()[1][1]
        self._indexes[attempt_id] = index, size
        self._index_bytes += size
        return index

    def drop_call_index(self, attempt_id: str) -> CallIndex | None:
        """Drop and return the index of an attempt's calls, if it is cached."""
        index, size = self._indexes.pop(attempt_id, (None, 0))
        self._index_bytes -= size
        return index

    def clear(self) -> None:
        """Drop everything."""
        self.attempts.clear()
        self._indexes.clear()
        self._index_bytes = 0
        self.next_due = None
