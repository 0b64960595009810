"""The state of a game between two asks.

Invariant (:meth:`State.check`): it holds after every answer of every game; the tests call it there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from werewolf.engine.asks import Ask, Choice, Kind
from werewolf.engine.events import Event, Happening
from werewolf.engine.roles import Role, Side
from werewolf.engine.rules import Rules

Cause = Literal["knife", "poison", "clash", "exile", "shot", "explosion"]
"""``clash``: guarded and healed at once (同守同救)."""


class IllegalState(AssertionError):
    """The engine has broken its own rules."""


@dataclass
class State:
    """Who is who, who lives, and what the roles remember."""

    rules: Rules
    roles: dict[int, Role]
    """Seats from 1 to their roles."""
    chance: random.Random
    alive: set[int] = field(default_factory=set)
    dead: dict[int, Cause] = field(default_factory=dict)
    """In the order of dying."""
    day: int = 0
    phase: str = "night"
    antidote: bool = True
    poison: bool = True
    last_guarded: int = 0
    """Whom the guard protected last night; 0: nobody."""
    sheriff: int = 0
    election: Literal["open", "delayed", "closed", "none"] = "none"
    """``delayed``: an explosion broke it off; ``closed``: decided, or the badge is lost."""
    standing: tuple[int, ...] = ()
    """Candidates of a delayed election."""
    unannounced: tuple[int, ...] = ()
    """Who died this night; a secret until dawn."""
    events: list[Event] = field(default_factory=list)

    def living(self, among: Iterable[int] | None = None) -> tuple[int, ...]:
        """Living seats in order, of all or ``among`` some."""
        return tuple(sorted(self.alive if among is None else self.alive.intersection(among)))

    def seats(self, *roles: Role) -> tuple[int, ...]:
        """Seats that were dealt one of ``roles``, dead ones too."""
        return tuple(seat for seat, role in self.roles.items() if role in roles)

    def holder(self, role: Role) -> int:
        """The living seat with a role that is dealt once; 0: none lives."""
        return next(iter(self.living(self.seats(role))), 0)

    @property
    def wolves(self) -> tuple[int, ...]:
        """The living wolves."""
        return self.living(s for s, role in self.roles.items() if role.side is Side.WOLVES)

    def tell(
        self,
        what: Happening,
        *,
        seat: int = 0,
        target: int = 0,
        to: Collection[int] | None = None,
        **data: Any,
    ) -> None:
        """Write an event; ``to``: the seats that know it, none: all."""
        audience = None if to is None else frozenset(to)
        self.events.append(
            Event(
                what=what,
                day=self.day,
                phase=self.phase,
                seat=seat,
                target=target,
                data=data,
                audience=audience,
            )
        )

    def ask(self, seat: int, kind: Kind, options: Iterable[Choice], **notes: Any) -> Ask:
        """A question at this moment of the game."""
        return Ask(seat=seat, kind=kind, day=self.day, phase=self.phase, options=tuple(options), notes=notes)

    def remove(self, seat: int, cause: Cause) -> None:
        """A living seat dies."""
        if seat not in self.alive:
            raise IllegalState(f"seat {seat} dies by {cause}, but is dead by {self.dead.get(seat)}")
        self.alive.remove(seat)
        self.dead[seat] = cause

    def check(self) -> None:
        """Raise :class:`IllegalState` if anything contradicts the rules."""
        every = set(self.roles)
        wrong = [
            text
            for bad, text in (
                (self.alive | set(self.dead) != every, "a seat is neither living nor dead"),
                (bool(self.alive & set(self.dead)), "a seat is living and dead"),
                (sorted(self.roles.values()) != sorted(self.rules.roles), "the roles are not the preset's"),
                (self.sheriff != 0 and self.sheriff not in every, "the sheriff is no seat"),
                (self.sheriff != 0 and not self.rules.sheriff, "a sheriff in a game without one"),
                (not 0 <= self.day <= self.rules.max_days, "too many days"),
                (self.last_guarded != 0 and self.last_guarded not in every, "the guarded is no seat"),
                (any(s in self.alive for s in self.unannounced), "an unannounced death of a living seat"),
            )
            if bad
        ]
        if wrong:
            raise IllegalState("; ".join(wrong))
