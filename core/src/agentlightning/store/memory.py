"""What the owner of the file keeps in mind, so that a write of a live attempt needs no query.

Invariant: memory never knows more than the tables. What changes an attempt otherwise forgets it, and when
anything is undone (a failed write or commit) all is forgotten: :meth:`Memory.forget` costs only the next
queries.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 10_000
"""Live attempts in mind."""


@dataclass(slots=True)
class Live:
    """The latest attempt of a rollout, which may write."""

    attempt_id: str
    sequence_id: int
    fence: int
    arrivals: int
    """Spans and calls so far."""
    running: bool
    """It has given a sign of life: attempt and rollout run."""


class Memory:
    """Live attempts by rollout id, and when the next of all attempts may be overdue."""

    def __init__(self) -> None:
        self.live: dict[str, Live] = {}
        self.due: float | None = None
        """No attempt is overdue before; ``inf``: none ever will be; ``None``: not known."""

    def keep(self, rollout_id: str, live: Live) -> Live:
        """Keep an attempt in mind."""
        if len(self.live) >= _MOST:
            self.live.clear()
        self.live[rollout_id] = live
        return live

    def due_by(self, when: float) -> None:
        """An attempt may be overdue at ``when``."""
        if self.due is not None:
            self.due = min(self.due, when)

    def forget(self) -> None:
        """Know nothing; ask the tables."""
        self.live.clear()
        self.due = None
