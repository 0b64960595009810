"""Who speaks when, and a speech."""

from __future__ import annotations

from werewolf.engine.asks import PASS, Flow, Kind, Say, Statement
from werewolf.engine.deaths import tell_said
from werewolf.engine.state import State


def speak(state: State, seat: int, kind: Kind) -> Flow[None]:
    """One public speech."""
    (said,) = yield [state.ask(seat, kind, (PASS, *claims(state, seat)))]
    assert isinstance(said, Say)
    tell_said(state, seat, kind, said)


def claims(state: State, seat: int) -> tuple[Statement, ...]:
    """What a speech may amount to beside nothing: about every other seat that is not known to be dead."""
    about = [s for s in sorted(state.alive.union(state.unannounced)) if s != seat]
    return (
        *(Statement("accuse", s) for s in about),
        *(Statement("wolf", s) for s in about),
        *(Statement("good", s) for s in about),
    )


def in_turn(state: State, seats: tuple[int, ...]) -> tuple[int, ...]:
    """``seats`` from one drawn by lot, in a direction drawn by lot."""
    return round_from(seats, state.chance.choice(seats), state.chance.choice((1, -1))) if seats else ()


def round_from(seats: tuple[int, ...], first: int, step: int) -> tuple[int, ...]:
    """``seats`` around the table from ``first`` on, or from the next seat if ``first`` is none of them."""
    order = sorted(seats, reverse=step < 0)
    after = [s for s in order if (s - first) * step >= 0]
    return (*after, *(s for s in order if s not in after))
