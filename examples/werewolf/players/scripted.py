"""Scripted players: a decent rule for each decision of each role.

The town believes one of the seats that claim to be the seer: one that the wolves killed, else the first to
speak. It does not follow plain accusations, for wolves make them too. Wolves hunt a seer that is believed, or
claim to be it before the true one does; they vote as the town does where that hits the town.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from werewolf.engine import Answer, Ask, Event, Kind, Role, Side, Statement
from werewolf.engine.asks import LEFT, NO, PASS, RIGHT, SKIP, TEAR, YES
from werewolf.players.base import LocalPlayer
from werewolf.players.knowledge import Knowledge
from werewolf.wording import Wording


class ScriptedPlayer(LocalPlayer):
    """Plays the role it was dealt."""

    def __init__(self, seat: int, seats: int, chance: random.Random, wording: Wording) -> None:
        super().__init__(seat, chance, wording)
        self.knows = Knowledge(seat, seats)

    def observe(self, event: Event) -> None:
        self.knows.observe(event)

    def choose(self, ask: Ask) -> Answer:
        if ask.spoken:
            statement = self.statement(ask)
            return self.say(ask, statement if statement in ask.options else PASS)
        seats = [o for o in ask.options if isinstance(o, int)]
        wish = self.wish(ask, seats)
        return wish if wish in ask.options else self.chance.choice(ask.options)

    # ------------------------------------------------------------------------------------------- beliefs
    @property
    def wolf(self) -> bool:
        return self.knows.role.side is Side.WOLVES

    def trusted(self) -> int:
        """The seat whose word as the seer the town takes: of those who claim to be it the one that the wolves
        killed, else the first. Nobody trusts who has exploded, or who calls oneself a wolf."""
        if self.knows.role is Role.SEER:
            return self.seat
        honest = [
            seat
            for seat, said in self.knows.seers.items()
            if seat not in self.knows.exploded and said.get(self.seat) is not Side.WOLVES
        ]
        killed = [seat for seat in honest if seat in self.knows.died_at_night]
        return (killed or honest or [0])[0]

    def believed(self) -> dict[int, Side]:
        """What is held for true of others: the trusted seer's words, or the seer's own checks."""
        return self.knows.checks or self.knows.seers.get(self.trusted(), {})

    def suspects(self, among: Sequence[int]) -> list[int]:
        """Whom the town votes for: wolves by the trusted word, else who claims to be the seer too, else who
        is not cleared.
        """
        believed, trusted = self.believed(), self.trusted()
        wolves = [s for s in among if believed.get(s) is Side.WOLVES]
        rivals = [s for s in among if s in self.knows.seers and s != trusted]
        unclear = [s for s in among if s not in believed and s != trusted]
        return wolves or rivals or unclear or list(among)

    def prey(self, among: Sequence[int]) -> list[int]:
        """Whom wolves want dead: the trusted seer, else who is cleared, else any of the town but a rival of
        their own seer, whose death would prove its word."""
        town = [s for s in among if s not in self.knows.team]
        trusted = self.trusted()
        if trusted in self.knows.team:
            return [s for s in town if s not in self.knows.seers] or town or list(among)
        cleared = [s for s in town if self.knows.seers.get(trusted, {}).get(s) is Side.TOWN]
        return [s for s in town if s == trusted] or cleared or town or list(among)

    # ------------------------------------------------------------------------------------------- decisions
    def wish(self, ask: Ask, seats: list[int]) -> Answer:
        """The choice for an ask that is not spoken."""
        rules = {
            Kind.GUARD: self._guard,
            Kind.WOLF_VOTE: self._kill,
            Kind.SAVE: lambda ask, seats: YES,
            Kind.POISON: self._poison,
            Kind.CHECK: self._check,
            Kind.RUN: self._run,
            Kind.WITHDRAW: lambda ask, seats: NO,
            Kind.SHERIFF_VOTE: self._elect,
            Kind.DIRECTION: lambda ask, seats: self.chance.choice((LEFT, RIGHT)),
            Kind.EXPLODE: self._explode,
            Kind.VOTE: self._vote,
            Kind.SHOOT: self._shoot,
            Kind.BADGE: self._badge,
        }
        return rules[ask.kind](ask, seats)

    def _guard(self, ask: Ask, seats: list[int]) -> Answer:
        seers = [s for s in seats if s in self.knows.seers]
        return self.chance.choice(seers or seats)

    def _kill(self, ask: Ask, seats: list[int]) -> Answer:
        proposed = [s for s in self.knows.proposals.values() if s in seats]
        return proposed[0] if proposed else self.chance.choice(self.prey(seats))

    def _poison(self, ask: Ask, seats: list[int]) -> Answer:
        wolves = [s for s in seats if self.believed().get(s) is Side.WOLVES]
        return self.chance.choice(wolves) if wolves else SKIP

    def _check(self, ask: Ask, seats: list[int]) -> Answer:
        fresh = [s for s in seats if s not in self.knows.checks]
        return self.chance.choice(fresh or seats)

    def _run(self, ask: Ask, seats: list[int]) -> Answer:
        return YES if self.knows.role in (Role.SEER, Role.WOLF_KING) or self.chance.random() < 0.15 else NO

    def _elect(self, ask: Ask, seats: list[int]) -> Answer:
        if self.wolf:
            own = [s for s in seats if s in self.knows.team]
            return self.chance.choice(own or seats)
        trusted = self.trusted()
        return trusted if trusted in seats else self.chance.choice(seats)

    def _explode(self, ask: Ask, seats: list[int]) -> Answer:
        """Only when it is lost anyway: called a wolf by the seer everybody believes, with wolves to spare."""
        seers = list(self.knows.seers.values())
        lost = bool(seers) and seers[0].get(self.seat) is Side.WOLVES and ask.phase == "day"
        spare = sum(s in self.knows.living for s in self.knows.team) > 2
        return YES if lost and spare and self.chance.random() < 0.3 else NO

    def _vote(self, ask: Ask, seats: list[int]) -> Answer:
        """Wolves vote as the town does where that hits the town, and for one another's sake all alike."""
        if not self.wolf:
            return self.chance.choice(self.suspects(seats))
        town = [s for s in seats if s not in self.knows.team]
        called = [s for s in self.suspects(seats) if s in town]
        return min(called or town or seats)

    def _shoot(self, ask: Ask, seats: list[int]) -> Answer:
        if self.wolf:
            return self.chance.choice(self.prey(seats))
        wolves = [s for s in seats if self.believed().get(s) is Side.WOLVES]
        return self.chance.choice(wolves) if wolves else SKIP

    def _badge(self, ask: Ask, seats: list[int]) -> Answer:
        if self.wolf:
            own = [s for s in seats if s in self.knows.team]
            return self.chance.choice(own) if own else TEAR
        good = [s for s in seats if self.believed().get(s) is Side.TOWN]
        return self.chance.choice(good) if good else TEAR

    # ------------------------------------------------------------------------------------------- speech
    def statement(self, ask: Ask) -> Statement:
        """What a speech amounts to."""
        if ask.kind in (Kind.WOLF_TALK, Kind.LAST_WORDS):
            return PASS
        if self.knows.role is Role.SEER:
            return self._report(ask)
        return self._lie() if self.wolf else PASS

    def _report(self, ask: Ask) -> Statement:
        """The seer tells of a wolf it has found, else of the last it checked."""
        said = self.knows.seers.get(self.seat, {})
        wolves = [
            s for s, side in self.knows.checks.items() if side is Side.WOLVES and s in self.knows.living
        ]
        if wolves:
            return Statement("wolf", wolves[-1])
        untold = [s for s in self.knows.checks if s not in said]
        return Statement("good", untold[-1]) if untold else PASS

    def _lie(self) -> Statement:
        """If nobody has claimed to be the seer yet, a wolf does, and goes on with it: another of the town is
        a wolf each day. After the true seer has spoken a second claim would only betray its maker.
        """
        knows = self.knows
        if knows.seers and self.seat not in knows.seers:
            return PASS
        said = knows.seers.get(self.seat, {})
        fresh = [s for s in knows.others if s not in knows.team and s not in said]
        rivals = [s for s in fresh if s in knows.seers]
        return Statement("wolf", self.chance.choice(rivals or fresh)) if fresh else PASS
