"""Counting votes. Every ballot stays with its voter, abstentions too, so that a weight finds its owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from werewolf.engine.asks import SKIP, Answer, Choice, Flow, Kind
from werewolf.engine.state import State


class Tally(NamedTuple):
    """Who voted for whom (0: abstained), the weighed sums, and who leads: one, several, or nobody."""

    ballots: dict[int, int]
    sums: dict[int, float]
    leaders: tuple[int, ...]

    @property
    def data(self) -> dict[str, Any]:
        """As an event carries it."""
        return {"ballots": self.ballots, "sums": self.sums}


def ballot(
    state: State,
    kind: Kind,
    voters: Sequence[int],
    candidates: Iterable[int],
    weights: Mapping[int, float] | None = None,
    abstain: bool = True,
) -> Flow[Tally]:
    """All ``voters`` vote at once for one of ``candidates``, unseen. Voters without a weight count as one."""
    standing = tuple(candidates)
    asks = []
    for seat in voters:
        options: list[Choice] = [s for s in standing if s != seat]
        asks.append(state.ask(seat, kind, [*options, *([SKIP] if abstain else [])]))
    answers = (yield asks) if asks else []
    return count(dict(zip(voters, answers, strict=True)), weights or {})


def count(answers: Mapping[int, Answer], weights: Mapping[int, float]) -> Tally:
    """The tally of the voters' answers."""
    ballots = {seat: choice if isinstance(choice, int) else 0 for seat, choice in answers.items()}
    sums: dict[int, float] = {}
    for voter, candidate in ballots.items():
        if candidate:
            sums[candidate] = sums.get(candidate, 0.0) + weights.get(voter, 1.0)
    most = max(sums.values(), default=0.0)
    return Tally(ballots, dict(sorted(sums.items())), tuple(sorted(c for c, n in sums.items() if n == most)))
