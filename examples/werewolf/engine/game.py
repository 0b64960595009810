"""A game: asks, answers, events, outcome.

Invariant: ``(preset, deal, chance, answers)`` decide everything; a game ends with an outcome, at the latest
after the preset's last day.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from werewolf.engine.asks import Answer, Ask, Flow
from werewolf.engine.day import day
from werewolf.engine.events import Event, Happening
from werewolf.engine.night import night
from werewolf.engine.roles import Role, Side
from werewolf.engine.rules import Rules, preset
from werewolf.engine.state import State
from werewolf.engine.victory import GameOver, winner


@dataclass(frozen=True)
class Outcome:
    """How a game ended. Without a winner it ran out of days."""

    winner: Side | None
    reason: Literal["victory", "max-days"]
    days: int


class Game:
    """One game. ``deal``: who gets which role; ``chance``: every other lot (default: ``deal``)."""

    def __init__(self, rules: Rules | str, deal: int, chance: int | str | None = None) -> None:
        self.rules = preset(rules) if isinstance(rules, str) else rules
        self.state = _dealt(self.rules, deal, deal if chance is None else chance)
        self.outcome: Outcome | None = None
        self.answers: list[tuple[Ask, Answer]] = []
        """Everything that was asked and answered, in order."""
        self._flow = _whole(self.state)
        self.asks: tuple[Ask, ...] = ()
        """What is asked now, all at once; empty when the game is over."""
        self._advance(None)

    @property
    def events(self) -> list[Event]:
        """What has happened so far."""
        return self.state.events

    def seen_by(self, seat: int) -> list[Event]:
        """The events that a seat knows."""
        return [event for event in self.state.events if event.known_to(seat)]

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer all of :attr:`asks`, in their order. :class:`IllegalAnswer` changes nothing."""
        if len(answers) != len(self.asks):
            raise ValueError(f"{len(self.asks)} asks are open, {len(answers)} answers were given")
        for ask, answer in zip(self.asks, answers, strict=True):
            ask.check(answer)
        self.answers += zip(self.asks, answers, strict=True)
        self._advance(list(answers))

    def _advance(self, answers: list[Answer] | None) -> None:
        try:
            self.asks = tuple(next(self._flow) if answers is None else self._flow.send(answers))
        except StopIteration as end:
            self.asks = ()
            self.outcome = end.value


def _dealt(rules: Rules, deal: int, chance: int | str) -> State:
    roles = list(rules.roles)
    random.Random(f"werewolf:{rules.name}:deal:{deal}").shuffle(roles)
    state = State(
        rules=rules,
        roles=dict(enumerate(roles, start=1)),
        chance=random.Random(f"werewolf:{rules.name}:chance:{deal}:{chance}"),
        election="open" if rules.sheriff else "none",
    )
    state.alive = set(state.roles)
    return state


def _whole(state: State) -> Flow[Outcome]:
    _deal(state)
    try:
        for number in range(1, state.rules.max_days + 1):
            state.day = number
            yield from night(state)
            yield from day(state)
    except GameOver:
        outcome = Outcome(winner(state), "victory", state.day)
    else:
        outcome = Outcome(None, "max-days", state.day)
    won = outcome.winner.value if outcome.winner else None
    roles = {seat: role.value for seat, role in state.roles.items()}
    state.tell(Happening.OVER, winner=won, reason=outcome.reason, roles=roles)
    return outcome


def _deal(state: State) -> None:
    """Everybody learns its role; the wolves learn of each other and of their king."""
    for seat, role in state.roles.items():
        state.tell(Happening.DEAL, seat=seat, to=[seat], role=role.value)
    king = next(iter(state.seats(Role.WOLF_KING)), 0)
    state.tell(Happening.TEAM, to=state.wolves, seats=state.wolves, king=king)
