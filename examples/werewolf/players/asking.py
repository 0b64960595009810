"""What all players that ask a model have in common: who they are, and what became of their decisions.

Invariant: every decision ends in a legal answer. What the model did not bring about stands as ``default`` in
the account, so that nothing invalid is lost in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from werewolf.engine import Answer, Ask, Event, Kind, Say
from werewolf.players.knowledge import Knowledge


@dataclass(frozen=True)
class Decision:
    """One decision, and the model calls it took: all but the last were invalid, and if ``valid`` is false
    that one was too.
    """

    seat: int
    role: str
    side: str
    kind: str
    calls: tuple[str, ...]
    """Response ids."""
    valid: bool
    target: int = 0
    """The seat that was chosen, if one was."""
    said: str = ""
    """What a model said in public in its own words."""


@dataclass
class Account:
    """The decisions of a game's models, in order."""

    decisions: list[Decision] = field(default_factory=list)

    @property
    def invalid_calls(self) -> int:
        return sum(len(d.calls) - d.valid for d in self.decisions)

    @property
    def defaults(self) -> int:
        """Decisions that a legal default stands in for."""
        return sum(not d.valid for d in self.decisions)


class Endpoint(Protocol):
    """Where a model is: an OpenAI-compatible API."""

    @property
    def endpoint(self) -> str: ...

    @property
    def api_key(self) -> str | None: ...

    @property
    def model(self) -> str: ...


class AskingPlayer:
    """Keeps what its seat knows, and the tags of its calls."""

    def __init__(self, seat: int, seats: int, account: Account) -> None:
        self.seat = seat
        self.knows = Knowledge(seat, seats)
        self.account = account
        self.turn = 0
        """Decisions made so far."""

    def observe(self, event: Event) -> None:
        self.knows.observe(event)

    def tags(self, ask: Ask) -> Mapping[str, str]:
        """Who asks, and at which moment of the game."""
        role = self.knows.role
        self.turn += 1
        return {
            "seat": str(self.seat),
            "role": role.value,
            "side": role.side.value,
            "phase": ask.phase,
            "kind": ask.kind.value,
            "day": str(ask.day),
            "turn": str(self.turn),
        }

    def decided(self, ask: Ask, calls: tuple[str, ...], answer: Answer | None) -> None:
        """Put a decision into the account; ``None``: the model brought none about."""
        role = self.knows.role
        target = answer if isinstance(answer, int) else 0
        said = answer.text if isinstance(answer, Say) and ask.kind is not Kind.WOLF_TALK else ""
        valid, kind, side = answer is not None, ask.kind.value, role.side.value
        self.account.decisions.append(Decision(self.seat, role.value, side, kind, calls, valid, target, said))
