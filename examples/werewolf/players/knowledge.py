"""What a seat knows: the events it has observed, sorted."""

from __future__ import annotations

from dataclasses import dataclass, field

from werewolf.engine import Event, Happening, Role, Side


@dataclass
class Knowledge:
    """Grows by :meth:`observe`; holds nothing that the seat was not told."""

    seat: int
    seats: int
    role: Role = Role.VILLAGER
    team: tuple[int, ...] = ()
    """The wolves, if the seat is one."""
    king: int = 0
    day: int = 0
    phase: str = "night"
    dead: list[int] = field(default_factory=list)
    """In the order of dying, as far as it is public."""
    died_at_night: list[int] = field(default_factory=list)
    seers: dict[int, dict[int, Side]] = field(default_factory=dict)
    """Who has claimed to be the seer, in order, and what they said of whom."""
    accused: dict[int, list[int]] = field(default_factory=dict)
    """Seat → those who accused it without a role."""
    checks: dict[int, Side] = field(default_factory=dict)
    """The seat's own checks, if it is the seer."""
    victim: int = 0
    """Whom the witch was told of tonight."""
    proposals: dict[int, int] = field(default_factory=dict)
    """Tonight's proposals of the wolves."""
    sheriff: int = 0
    exploded: list[int] = field(default_factory=list)
    votes: list[dict[int, int]] = field(default_factory=list)
    """The exile ballots, voter → candidate."""

    @property
    def living(self) -> list[int]:
        return [seat for seat in range(1, self.seats + 1) if seat not in self.dead]

    @property
    def others(self) -> list[int]:
        return [seat for seat in self.living if seat != self.seat]

    def observe(self, event: Event) -> None:
        """Take note of an event."""
        if (event.day, event.phase) != (self.day, self.phase) and event.phase == "night":
            self.victim = 0
            self.proposals = {}
        self.day, self.phase = event.day, event.phase
        note = _NOTES.get(event.what)
        if note:
            note(self, event)

    def _deal(self, event: Event) -> None:
        self.role = Role(event.data["role"])

    def _team(self, event: Event) -> None:
        self.team, self.king = tuple(event.data["seats"]), event.data["king"]

    def _proposal(self, event: Event) -> None:
        self.proposals[event.seat] = event.target

    def _victim(self, event: Event) -> None:
        self.victim = event.target

    def _checked(self, event: Event) -> None:
        self.checks[event.target] = Side(event.data["side"])

    def _dawn(self, event: Event) -> None:
        self.dead += event.data["seats"]
        self.died_at_night += event.data["seats"]

    def _gone(self, event: Event) -> None:
        self.dead.append(event.target if event.what is Happening.SHOT else event.seat)
        if event.what is Happening.EXPLODED:
            self.exploded.append(event.seat)

    def _said(self, event: Event) -> None:
        claim = event.data["claim"]
        if claim == "accuse":
            self.accused.setdefault(event.target, []).append(event.seat)
        elif claim in ("wolf", "good"):
            side = Side.WOLVES if claim == "wolf" else Side.TOWN
            self.seers.setdefault(event.seat, {})[event.target] = side

    def _tally(self, event: Event) -> None:
        self.votes.append(event.data["ballots"])

    def _sheriff(self, event: Event) -> None:
        self.sheriff = event.target if event.what is Happening.BADGE else event.seat


_NOTES = {
    Happening.DEAL: Knowledge._deal,
    Happening.TEAM: Knowledge._team,
    Happening.WOLF_PROPOSAL: Knowledge._proposal,
    Happening.VICTIM: Knowledge._victim,
    Happening.CHECKED: Knowledge._checked,
    Happening.DAWN: Knowledge._dawn,
    Happening.EXILED: Knowledge._gone,
    Happening.SHOT: Knowledge._gone,
    Happening.EXPLODED: Knowledge._gone,
    Happening.SAID: Knowledge._said,
    Happening.TALLY: Knowledge._tally,
    Happening.SHERIFF: Knowledge._sheriff,
    Happening.BADGE: Knowledge._sheriff,
}
