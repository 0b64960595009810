"""The day: election, announcement of the night's dead, speeches, exile vote."""

from __future__ import annotations

from werewolf.engine.asks import LEFT, RIGHT, Flow, Kind
from werewolf.engine.ballots import Tally, ballot
from werewolf.engine.deaths import badge, last_words, shots
from werewolf.engine.events import Happening
from werewolf.engine.explosion import Exploded, aftermath, offer
from werewolf.engine.sheriff import election
from werewolf.engine.speech import in_turn, round_from, speak
from werewolf.engine.state import State
from werewolf.engine.victory import settle

SHERIFF_WEIGHT = 1.5
"""What the sheriff's ballot counts in the first vote of a day."""


def day(state: State) -> Flow[None]:
    """One day. An explosion during the election ends it after the night's dead have had their due."""
    state.phase = "day"
    exploded = False
    try:
        yield from election(state)
    except Exploded:
        exploded = True
        settle(state)
    fallen = yield from _dawn(state)
    if exploded:
        yield from aftermath(state)
        return
    try:
        yield from _speeches(state, fallen)
        yield from _exile(state)
    except Exploded:
        yield from aftermath(state)


def _dawn(state: State) -> Flow[tuple[int, ...]]:
    """Who died, without causes; shots of those who may; last words of the first night; the badge."""
    fallen, state.unannounced = state.unannounced, ()
    state.tell(Happening.DAWN, seats=fallen)
    shot: list[int] = []
    for seat in fallen:
        shot += yield from shots(state, seat)
    if state.day == 1:
        yield from last_words(state, fallen)
    yield from last_words(state, shot)
    yield from badge(state)
    return (*fallen, *shot)


def _speeches(state: State, fallen: tuple[int, ...]) -> Flow[None]:
    """One speech of each living seat; the sheriff has the last, which says how to vote."""
    order = yield from _order(state, fallen)
    state.tell(Happening.ORDER, seats=order)
    for seat in order:
        yield from offer(state, [seat])
        yield from speak(state, seat, Kind.SUMMARY if seat == state.sheriff else Kind.SPEECH)


def _order(state: State, fallen: tuple[int, ...]) -> Flow[tuple[int, ...]]:
    """With a sheriff: from beside the dead (of a peaceful night: beside the sheriff), to the side that the
    sheriff picks, the sheriff last. Without: from beside a dead seat, or any, to a side by lot."""
    living = state.living()
    if not state.sheriff:
        if not fallen:
            return in_turn(state, living)
        return round_from(living, state.chance.choice(fallen), state.chance.choice((1, -1)))
    (side,) = yield [state.ask(state.sheriff, Kind.DIRECTION, (LEFT, RIGHT))]
    first = fallen[0] if fallen else state.sheriff
    others = tuple(seat for seat in living if seat != state.sheriff)
    return (*round_from(others, first, 1 if side == RIGHT else -1), state.sheriff)


def _exile(state: State) -> Flow[None]:
    """The vote, where the rules say so a second one of a tie, and what follows for who is exiled."""
    living = state.living()
    yield from offer(state, living)
    weights = {state.sheriff: SHERIFF_WEIGHT}
    tally = yield from _vote(state, living, living, weights)
    if len(tally.leaders) > 1 and state.rules.tie == "pk":
        tally = yield from _pk(state, tally.leaders)
    if len(tally.leaders) != 1:
        state.tell(Happening.NO_EXILE)
        return
    exiled = tally.leaders[0]
    state.remove(exiled, "exile")
    state.tell(Happening.EXILED, seat=exiled)
    settle(state)
    shot = yield from shots(state, exiled)
    yield from last_words(state, (exiled, *shot))
    yield from badge(state)


def _pk(state: State, tied: tuple[int, ...]) -> Flow[Tally]:
    """The tied speak again, all others vote, each with one ballot."""
    state.tell(Happening.PK, seats=tied)
    for seat in tied:
        yield from offer(state, [seat])
        yield from speak(state, seat, Kind.PK_SPEECH)
    yield from offer(state, state.living())
    voters = tuple(seat for seat in state.living() if seat not in tied)
    return (yield from _vote(state, voters, tied, {}))


def _vote(
    state: State, voters: tuple[int, ...], candidates: tuple[int, ...], weights: dict[int, float]
) -> Flow[Tally]:
    tally = yield from ballot(state, Kind.VOTE, voters, candidates, weights, state.rules.abstain)
    state.tell(Happening.TALLY, **tally.data)
    return tally
