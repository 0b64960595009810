"""Rewards per transition: what each model call of a finished game is worth.

Rules in one: the outcome of the seat's side for every call (broadcast), the same less for early decisions
(``discount``), something for whom a decision strikes (``aim``), and for how well is spoken (``judge``).
Invariant: what failed outside the game has no reward (missing is not zero); a game without a winner gives
every side the same ``draw``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from werewolf.engine import Kind, Outcome, Role, Side
from werewolf.players.asking import Account, Decision

NEUTRAL = 0.5
"""The judge's score that neither adds nor takes away; a speech without score is taken for this."""

STRIKES = frozenset({Kind.WOLF_VOTE, Kind.VOTE, Kind.POISON, Kind.SHOOT})
"""Decisions that are meant to hurt whom they name."""


@dataclass(frozen=True)
class Rewards:
    """What the events are worth. The defaults are 1 for a win and 0 for anything else."""

    wolves_win: float = 1.0
    wolves_lose: float = 0.0
    town_win: float = 1.0
    town_lose: float = 0.0
    draw: float = 0.0
    discount: float = 1.0
    """Factor on the outcome for each later decision of the same seat."""
    aim: float = 0.0
    """Added to a strike at a seat of the other side, taken from one at the own side."""
    invalid: float = 0.0
    """Instead of the outcome, for a call whose decision was not valid; added to it, if ``add_invalid``."""
    add_invalid: bool = False
    judge: float = 0.0
    """Weight of a speech's score by the judge: times how far it is above the neutral 0.5, or below."""

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Rewards:
        """From a task's ``rewards``; an unknown name is an error."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given or ()) - known):
            raise ValueError(f"rewards: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        return cls(**(given or {}))

    def outcome(self, side: str, outcome: Outcome) -> float:
        """What a side gets for the game."""
        if outcome.winner is None:
            return self.draw
        won = outcome.winner.value == side
        if side == Side.WOLVES.value:
            return self.wolves_win if won else self.wolves_lose
        return self.town_win if won else self.town_lose

    def of_calls(
        self,
        account: Account,
        outcome: Outcome,
        roles: Mapping[int, Role],
        scores: Mapping[str, float] | None = None,
    ) -> Iterator[tuple[str, float]]:
        """(response id, reward) of every call. ``roles``: of all seats, known when the game is over.
        ``scores``: the judge's, by response id.
        """
        left = Counter(decision.seat for decision in account.decisions)
        for decision in account.decisions:
            left[decision.seat] -= 1
            value = self.outcome(decision.side, outcome) * self.discount ** left[decision.seat]
            value += self._aim(decision, roles) + self._judged(decision, scores or {})
            for position, call in enumerate(decision.calls):
                valid = decision.valid and position == len(decision.calls) - 1
                penalty = value + self.invalid if self.add_invalid else self.invalid
                yield call, value if valid else penalty

    def _aim(self, decision: Decision, roles: Mapping[int, Role]) -> float:
        if not decision.target or decision.kind not in STRIKES:
            return 0.0
        return -self.aim if roles[decision.target].side.value == decision.side else self.aim

    def _judged(self, decision: Decision, scores: Mapping[str, float]) -> float:
        score = scores.get(decision.calls[-1], NEUTRAL) if decision.calls else NEUTRAL
        return self.judge * (score - NEUTRAL)
