"""What a death brings along: the gun, last words, the badge."""

from __future__ import annotations

from collections.abc import Iterable

from werewolf.engine.asks import PASS, SKIP, TEAR, Flow, Kind, Say
from werewolf.engine.events import Happening
from werewolf.engine.state import State
from werewolf.engine.victory import settle

CHAIN = 2
"""Shots that one death may bring, at most: a gun-holder who is shot may shoot in turn."""


def shots(state: State, seat: int) -> Flow[list[int]]:
    """The shots that the death of ``seat`` brings; the seats that were shot, in order."""
    fallen: list[int] = []
    holder = seat
    while len(fallen) < CHAIN and may_shoot(state, holder):
        (target,) = yield [state.ask(holder, Kind.SHOOT, (*state.living(), SKIP))]
        if not isinstance(target, int):
            break
        state.remove(target, "shot")
        state.tell(Happening.SHOT, seat=holder, target=target)
        fallen.append(target)
        settle(state)
        holder = target
    return fallen


def may_shoot(state: State, seat: int) -> bool:
    """A dead hunter or wolf king who was not poisoned, and who did not explode."""
    return state.roles[seat].gun and state.dead.get(seat) not in (None, "poison", "explosion")


def last_words(state: State, seats: Iterable[int]) -> Flow[None]:
    """The dead speak once more, one after the other."""
    if not state.rules.last_words:
        return
    for seat in seats:
        (said,) = yield [state.ask(seat, Kind.LAST_WORDS, (PASS,))]
        assert isinstance(said, Say)
        tell_said(state, seat, Kind.LAST_WORDS, said)


def badge(state: State) -> Flow[None]:
    """A dead sheriff hands the badge to a living seat, or tears it. Without a dead sheriff: nothing."""
    if not state.sheriff or state.sheriff in state.alive:
        return
    old = state.sheriff
    (heir,) = yield [state.ask(old, Kind.BADGE, (*state.living(), TEAR))]
    state.sheriff = heir if isinstance(heir, int) else 0
    state.tell(Happening.BADGE, seat=old, target=state.sheriff)


def tell_said(state: State, seat: int, kind: Kind, said: Say) -> None:
    """A public speech. What was thought before it stays with the player."""
    state.tell(
        Happening.SAID, seat=seat, target=said.statement.seat, kind=kind.value, text=said.text,
        claim=said.statement.claim,
    )  # fmt: skip
