"""Cached state of live attempts, so that a write needs no query.

Invariant: the cache never knows more than the tables. Every other change of an attempt drops its entry, and a
rollback drops all of them: :meth:`StoreCache.clear` costs only the next queries.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from agentlightning.store.calls import CallIndex

_MAX_ATTEMPTS = 10_000
"""Cached attempts."""
_MAX_INDEX_BYTES = 128 << 20
"""Bytes of the call indexes of all attempts. An index that was dropped is made again from the table."""
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
        self.call_indexes: OrderedDict[str, CallIndex] = OrderedDict()
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

    def index(self, attempt_id: str) -> CallIndex | None:
        """The index of an attempt's calls, if it is cached."""
        found = self.call_indexes.get(attempt_id)
        if found is not None:
            self.call_indexes.move_to_end(attempt_id)
        return found

    def put_index(self, attempt_id: str, index: CallIndex) -> CallIndex:
        """Cache an index."""
        self.call_indexes[attempt_id] = index
        return index

    def trim_indexes(self) -> None:
        """Drop the least recently used indexes beyond the limit; checked once in a while."""
        self._writes += 1
        if self._writes % _TRIM_EVERY == 0:
            size = sum(index.size for index in self.call_indexes.values())
            while size > _MAX_INDEX_BYTES:
                _, dropped = self.call_indexes.popitem(last=False)
                size -= dropped.size

    def lower_next_due(self, when: float) -> None:
        """Note that an attempt may be overdue at ``when``."""
        if self.next_due is not None:
            self.next_due = min(self.next_due, when)

    def clear(self) -> None:
        """Drop everything."""
        self.attempts.clear()
        self.call_indexes.clear()
        self.next_due = None
