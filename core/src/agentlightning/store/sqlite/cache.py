"""What the owner of the file keeps in mind, so that a write of a live attempt needs no query.

Invariant: memory never knows more than the tables. What changes an attempt otherwise forgets it, and when
anything is undone (a failed write or commit) all is forgotten: :meth:`StoreCache.clear` costs only the next
queries.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_ATTEMPTS = 10_000
"""CachedAttempt attempts in mind."""


@dataclass(slots=True)
class CachedAttempt:
    """The latest attempt of a rollout, which may write."""

    attempt_id: str
    sequence_id: int
    fence: int
    arrivals: int
    """Spans and calls so far."""
    running: bool
    """It has given a sign of life: attempt and rollout run."""


class StoreCache:
    """CachedAttempt attempts by rollout id, and when the next of all attempts may be overdue."""

    def __init__(self) -> None:
        self.attempts: dict[str, CachedAttempt] = {}
        self.next_due: float | None = None
        """No attempt is overdue before; ``inf``: none ever will be; ``None``: not known."""

    def put(self, rollout_id: str, live: CachedAttempt) -> CachedAttempt:
        """Keep an attempt in mind."""
        if len(self.attempts) >= _MAX_ATTEMPTS:
            self.attempts.clear()
        self.attempts[rollout_id] = live
        return live

    def lower_next_due(self, when: float) -> None:
        """An attempt may be overdue at ``when``."""
        if self.next_due is not None:
            self.next_due = min(self.next_due, when)

    def clear(self) -> None:
        """Know nothing; ask the tables."""
        self.attempts.clear()
        self.next_due = None
