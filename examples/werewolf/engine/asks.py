"""What the engine asks of a seat, and what may be answered.

Invariant: every ask names its legal answers; nothing else is taken (:class:`IllegalAnswer`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeVar

Claim = Literal["pass", "accuse", "wolf", "good"]


class Statement(NamedTuple):
    """What a speech amounts to: nothing, "I suspect X", "I am the seer, X is a wolf", "… X is good"."""

    claim: Claim
    seat: int = 0


PASS = Statement("pass")
SKIP, YES, NO = "skip", "yes", "no"
LEFT, RIGHT = "left", "right"
TEAR = "tear"

Choice = int | str | Statement
"""A seat, one of the words above, or a statement."""


@dataclass(frozen=True)
class Say:
    """Something said: free text, and the statement it amounts to (``PASS``: none)."""

    text: str = ""
    statement: Statement = PASS
    agree: bool = False
    """Among the wolves at night: whether the talk may end."""


Answer = Choice | Say


class Kind(StrEnum):
    """Kinds of asks."""

    GUARD = "guard"
    WOLF_TALK = "wolf_talk"
    WOLF_VOTE = "wolf_vote"
    SAVE = "save"
    POISON = "poison"
    CHECK = "check"
    RUN = "run"
    CAMPAIGN = "campaign"
    WITHDRAW = "withdraw"
    SHERIFF_VOTE = "sheriff_vote"
    DIRECTION = "direction"
    EXPLODE = "explode"
    SPEECH = "speech"
    SUMMARY = "summary"
    PK_SPEECH = "pk_speech"
    VOTE = "vote"
    LAST_WORDS = "last_words"
    SHOOT = "shoot"
    BADGE = "badge"


SPOKEN = frozenset(
    {Kind.WOLF_TALK, Kind.CAMPAIGN, Kind.SPEECH, Kind.SUMMARY, Kind.PK_SPEECH, Kind.LAST_WORDS}
)
"""Kinds that are answered with a :class:`Say`."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to one seat."""

    seat: int
    kind: Kind
    day: int
    phase: str
    """``night``, ``election`` or ``day``."""
    options: tuple[Choice, ...]
    """The legal choices; of a spoken ask, the legal statements."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the seat may know beside its events, e.g. tonight's victim."""

    @property
    def spoken(self) -> bool:
        return self.kind in SPOKEN

    def check(self, answer: Answer) -> None:
        """Raise :class:`IllegalAnswer` unless ``answer`` is legal."""
        if self.spoken:
            legal = isinstance(answer, Say) and answer.statement in self.options
        else:
            # True == 1: a bool is no seat
            legal = not isinstance(answer, bool | Say) and answer in self.options
        if not legal:
            raise IllegalAnswer(
                f"seat {self.seat} answered {answer!r} to {self.kind}; legal are {list(self.options)}"
                + (" (as the statement of a Say)" if self.spoken else "")
            )


class IllegalAnswer(ValueError):
    """An answer that the rules do not allow."""


T = TypeVar("T")
Flow = Generator[list[Ask], list[Answer], T]
"""A part of the game: yields asks that are put at once, is sent their answers in the same order."""
