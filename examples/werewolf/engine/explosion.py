"""自爆: before it speaks and before votes an ordinary wolf may show itself, die, and end the day."""

from __future__ import annotations

from collections.abc import Iterable

from werewolf.engine.asks import NO, YES, Flow, Kind
from werewolf.engine.deaths import badge
from werewolf.engine.events import Happening
from werewolf.engine.roles import Role
from werewolf.engine.state import State
from werewolf.engine.victory import settle


class Exploded(Exception):
    """Raised inside the flow: this day has ended."""


def offer(state: State, seats: Iterable[int]) -> Flow[None]:
    """Ask those of ``seats`` that could explode, one after the other; the first yes ends the day.

    Only living ordinary wolves are asked: the king keeps its gun for other ends. Nobody else learns that
    somebody was asked.
    """
    if not state.rules.explosion:
        return
    for seat in seats:
        if seat not in state.alive or state.roles[seat] is not Role.WOLF:
            continue
        (choice,) = yield [state.ask(seat, Kind.EXPLODE, (YES, NO))]
        if choice == YES:
            state.remove(seat, "explosion")
            state.tell(Happening.EXPLODED, seat=seat)
            raise Exploded


def aftermath(state: State) -> Flow[None]:
    """What an explosion leaves: perhaps the end of the game, and the badge of a sheriff who exploded."""
    settle(state)
    yield from badge(state)
