"""The night: the powers act in the preset's order, then their effects are resolved at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from werewolf.engine.asks import NO, PASS, SKIP, YES, Flow, Kind, Say
from werewolf.engine.events import Happening
from werewolf.engine.roles import Role, Side
from werewolf.engine.state import Cause, State
from werewolf.engine.victory import settle


@dataclass
class Night:
    """What was chosen this night; 0: nobody."""

    guarded: int = 0
    victim: int = 0
    saved: bool = False
    poisoned: int = 0


def night(state: State) -> Flow[None]:
    """One night. The dead are removed at its end and stay unannounced."""
    state.phase = "night"
    state.tell(Happening.NIGHT)
    acts = {"guard": _guard, "wolves": _wolves, "witch": _witch, "seer": _seer}
    tonight = Night()
    for power in state.rules.night:
        yield from acts[power](state, tonight)
    _resolve(state, tonight)


def _guard(state: State, tonight: Night) -> Flow[None]:
    """Not the same player twice in a row: the forbidden one is not offered. A night off frees everybody."""
    seat = state.holder(Role.GUARD)
    if not seat:
        return
    free = [s for s in state.living() if s != state.last_guarded]
    (choice,) = yield [state.ask(seat, Kind.GUARD, (*free, SKIP), last=state.last_guarded)]
    tonight.guarded = state.last_guarded = choice if isinstance(choice, int) else 0
    state.tell(Happening.GUARDED, seat=seat, target=tonight.guarded, to=[seat])


def _wolves(state: State, tonight: Night) -> Flow[None]:
    pack = state.wolves
    yield from _talk(state, pack)
    vote = _in_turn if state.rules.wolf_vote == "in_turn" else _together
    tonight.victim = yield from vote(state, pack)
    state.tell(Happening.WOLF_RESULT, target=tonight.victim, to=pack)


def _talk(state: State, pack: tuple[int, ...]) -> Flow[None]:
    """Passes over the living wolves, until the last speaker of a pass agrees."""
    if len(pack) < 2:
        return
    for _ in range(state.rules.wolf_passes):
        agreed = False
        for seat in pack:
            (said,) = yield [state.ask(seat, Kind.WOLF_TALK, (PASS,))]
            assert isinstance(said, Say)
            state.tell(Happening.WOLF_TALK, seat=seat, to=pack, text=said.text, agree=said.agree)
            agreed = said.agree
        if agreed:
            return


def _targets(state: State) -> tuple[int | str, ...]:
    if state.rules.self_kill:
        return (*state.living(), SKIP)
    return tuple(s for s in state.living() if state.roles[s].side is Side.TOWN)


def _in_turn(state: State, pack: tuple[int, ...]) -> Flow[int]:
    """Each names a victim and sees what was named before; where they differ, the lot decides."""
    named: list[int] = []
    for seat in pack:
        (choice,) = yield [state.ask(seat, Kind.WOLF_VOTE, _targets(state), proposed=tuple(named))]
        named.append(choice if isinstance(choice, int) else 0)
        state.tell(Happening.WOLF_PROPOSAL, seat=seat, target=named[-1], to=pack)
    return state.chance.choice(named)


def _together(state: State, pack: tuple[int, ...]) -> Flow[int]:
    """All vote unseen. The most votes decide, ties by lot; nobody dies only if nobody voted."""
    answers = yield [state.ask(seat, Kind.WOLF_VOTE, _targets(state)) for seat in pack]
    named = [choice if isinstance(choice, int) else 0 for choice in answers]
    for seat, target in zip(pack, named, strict=True):
        state.tell(Happening.WOLF_PROPOSAL, seat=seat, target=target, to=pack)
    votes = Counter(target for target in named if target)
    most = [target for target, n in votes.items() if n == max(votes.values())]
    return state.chance.choice(sorted(most)) if most else 0


def _witch(state: State, tonight: Night) -> Flow[None]:
    """The antidote, else the poison; never both in one night. She learns the victim while she can heal."""
    seat = state.holder(Role.WITCH)
    if not seat:
        return
    if state.antidote and tonight.victim:
        state.tell(Happening.VICTIM, seat=seat, target=tonight.victim, to=[seat])
        if tonight.victim != seat or state.rules.witch_saves_herself:
            (choice,) = yield [state.ask(seat, Kind.SAVE, (YES, NO), victim=tonight.victim)]
            tonight.saved = choice == YES
    if tonight.saved:
        state.antidote = False
        state.tell(Happening.WITCH, seat=seat, target=tonight.victim, to=[seat], potion="antidote")
    elif state.poison:
        others = (s for s in state.living() if s != seat)
        (choice,) = yield [state.ask(seat, Kind.POISON, (*others, SKIP))]
        if isinstance(choice, int):
            tonight.poisoned, state.poison = choice, False
            state.tell(Happening.WITCH, seat=seat, target=choice, to=[seat], potion="poison")


def _seer(state: State, tonight: Night) -> Flow[None]:
    seat = state.holder(Role.SEER)
    if not seat:
        return
    (choice,) = yield [state.ask(seat, Kind.CHECK, (s for s in state.living() if s != seat))]
    assert isinstance(choice, int)
    side = state.roles[choice].side
    state.tell(Happening.CHECKED, seat=seat, target=choice, to=[seat], side=side.value)


def deaths(tonight: Night) -> dict[int, Cause]:
    """Who dies of what was chosen. Guarded or healed: survives; guarded and healed: dies. Poison kills."""
    out: dict[int, Cause] = {}
    if tonight.victim:
        guarded = tonight.guarded == tonight.victim
        if guarded == tonight.saved:
            out[tonight.victim] = "clash" if guarded else "knife"
    if tonight.poisoned:
        out[tonight.poisoned] = "poison"
    return out


def _resolve(state: State, tonight: Night) -> None:
    """Remove the dead of the night all at once; gun-holders among them learn whether they may shoot."""
    fallen = deaths(tonight)
    for seat, cause in sorted(fallen.items()):
        state.remove(seat, cause)
        if state.roles[seat].gun:
            state.tell(Happening.GUN, seat=seat, to=[seat], may_shoot=cause != "poison")
    state.unannounced = tuple(sorted(fallen))
    settle(state)
