"""警长: the election of the first day, and what becomes of it when an explosion breaks it off.

Invariant: the sheriff is one seat or nobody; whoever wins a ballot, the first or the second, gets the badge.
"""

from __future__ import annotations

from werewolf.engine.asks import NO, YES, Flow, Kind
from werewolf.engine.ballots import ballot
from werewolf.engine.events import Happening
from werewolf.engine.explosion import Exploded, offer
from werewolf.engine.speech import in_turn, speak
from werewolf.engine.state import State


def election(state: State) -> Flow[None]:
    """The election that this day holds, if any. :class:`Exploded` if a wolf breaks it off."""
    if state.election not in ("open", "delayed"):
        return
    state.phase = "election"
    late = state.election == "delayed"
    state.election = "delayed"
    try:
        if late:
            yield from _late(state)
        else:
            yield from _first(state)
    except Exploded:
        state.standing = state.living(state.standing)
        if late:
            _nobody(state, Happening.BADGE_LOST)
        raise
    finally:
        state.phase = "day"


def _first(state: State) -> Flow[None]:
    """Who runs, speeches, who withdraws, the vote. The dead of the night take part: nobody knows yet."""
    present = tuple(sorted(state.roles))
    state.tell(Happening.ELECTION)
    answers = yield [state.ask(seat, Kind.RUN, (YES, NO)) for seat in present]
    ran = tuple(seat for seat, choice in zip(present, answers, strict=True) if choice == YES)
    state.standing = ran
    state.tell(Happening.CANDIDATES, seats=ran)
    if not ran or ran == present:
        _nobody(state, Happening.NO_SHERIFF)
        return
    for seat in in_turn(state, ran):
        yield from offer(state, [seat])
        yield from speak(state, seat, Kind.CAMPAIGN)
    yield from _withdrawals(state, ran)
    voters = tuple(seat for seat in present if seat not in ran)
    yield from _decide(state, voters, second=True)


def _late(state: State) -> Flow[None]:
    """A day after an explosion: those who stood and live are voted on at once, without speeches or PK."""
    state.standing = state.living(state.standing)
    state.tell(Happening.CANDIDATES, seats=state.standing)
    voters = tuple(seat for seat in state.living() if seat not in state.standing)
    yield from _decide(state, voters, second=False)


def _withdrawals(state: State, ran: tuple[int, ...]) -> Flow[None]:
    """退水. Who has run may not vote, withdrawn or not."""
    answers = yield [state.ask(seat, Kind.WITHDRAW, (YES, NO)) for seat in ran]
    gone = {seat for seat, choice in zip(ran, answers, strict=True) if choice == YES}
    state.standing = tuple(seat for seat in ran if seat not in gone)
    for seat in sorted(gone):
        state.tell(Happening.WITHDRAWN, seat=seat)


def _decide(state: State, voters: tuple[int, ...], second: bool) -> Flow[None]:
    """The ballot; of a tie, with ``second``, speeches of the tied and a ballot of all others."""
    if not state.standing or not voters:
        _nobody(state, Happening.NO_SHERIFF)
        return
    yield from offer(state, state.living())
    tally = yield from ballot(state, Kind.SHERIFF_VOTE, voters, state.standing)
    state.tell(Happening.SHERIFF_TALLY, **tally.data)
    tied = tally.leaders
    if len(tied) > 1 and second:
        state.tell(Happening.PK, seats=tied)
        for seat in tied:
            yield from offer(state, [seat])
            yield from speak(state, seat, Kind.PK_SPEECH)
        yield from offer(state, state.living())
        others = tuple(seat for seat in sorted(state.roles) if seat not in tied)
        tally = yield from ballot(state, Kind.SHERIFF_VOTE, others, tied)
        state.tell(Happening.SHERIFF_TALLY, **tally.data)
    if len(tally.leaders) == 1:
        state.sheriff, state.election, state.standing = tally.leaders[0], "closed", ()
        state.tell(Happening.SHERIFF, seat=state.sheriff)
    else:
        _nobody(state, Happening.NO_SHERIFF)


def _nobody(state: State, what: Happening) -> None:
    state.election, state.standing = "closed", ()
    state.tell(what)
