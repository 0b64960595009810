"""What happened, and who may know it.

Invariant: an event that is not public names the seats that know it; nobody else's view ever holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Happening(StrEnum):
    """Kinds of events."""

    DEAL = "deal"
    TEAM = "team"
    NIGHT = "night"
    GUARDED = "guarded"
    WOLF_TALK = "wolf_talk"
    WOLF_PROPOSAL = "wolf_proposal"
    WOLF_RESULT = "wolf_result"
    VICTIM = "victim"
    WITCH = "witch"
    CHECKED = "checked"
    GUN = "gun"
    ELECTION = "election"
    CANDIDATES = "candidates"
    WITHDRAWN = "withdrawn"
    SHERIFF_TALLY = "sheriff_tally"
    SHERIFF = "sheriff"
    NO_SHERIFF = "no_sheriff"
    BADGE_LOST = "badge_lost"
    DAWN = "dawn"
    ORDER = "order"
    SAID = "said"
    EXPLODED = "exploded"
    TALLY = "tally"
    PK = "pk"
    EXILED = "exiled"
    NO_EXILE = "no_exile"
    SHOT = "shot"
    BADGE = "badge"
    OVER = "over"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened."""

    what: Happening
    day: int
    phase: str
    seat: int = 0
    """Who did it, or whom it is about; 0: no single player."""
    target: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    audience: frozenset[int] | None = None
    """Seats that know it; ``None``: everybody."""

    def known_to(self, seat: int) -> bool:
        return self.audience is None or seat in self.audience
