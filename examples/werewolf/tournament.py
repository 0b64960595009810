"""Seeded tournaments of local players: ``python -m werewolf.tournament --preset mini7 --games 1000``.

Every pairing plays the same deals with sides swapped, so that a player is measured as wolves and as town. A
win rate comes with its 95 % Wilson interval. Models are measured by ``agl eval``, on the same deals.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentlightning.algorithms.intervals import mean_interval
from werewolf.engine import Game, Outcome, Side
from werewolf.players.local import NAMES, local_player
from werewolf.table import play_local
from werewolf.tasks import EVALUATION


@dataclass
class Score:
    """What a pairing came to. A draw is won by nobody."""

    games: int = 0
    won: Counter[Side] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    """Role → seats that lived to the end."""
    dealt: Counter[str] = field(default_factory=Counter)
    days: int = 0

    def add(self, game: Game, outcome: Outcome) -> None:
        """Count a finished game."""
        self.games += 1
        self.days += outcome.days
        if outcome.winner is not None:
            self.won[outcome.winner] += 1
        for seat, role in game.state.roles.items():
            self.dealt[role.value] += 1
            self.survived[role.value] += seat in game.state.alive

    def rate(self, side: Side) -> float:
        """Share of the games that a side won."""
        return self.won[side] / self.games

    def ci(self, side: Side) -> list[float]:
        """Its 95 % Wilson interval."""
        won = self.won[side]
        low, high = mean_interval([1.0] * won + [0.0] * (self.games - won)).ends or (0.0, 1.0)
        return [round(low, 4), round(high, 4)]

    def roles(self) -> dict[str, float]:
        """Share of the seats of each role that lived to the end."""
        return {role: round(self.survived[role] / n, 3) for role, n in self.dealt.items()}


def pairing(preset: str, wolves: str, town: str, games: int, first: int = EVALUATION) -> Score:
    """``games`` games of one kind of player against another, from deal ``first`` on."""
    score = Score()
    for deal in range(first, first + games):
        game = Game(preset, deal, f"{deal}:0")
        kinds = {Side.WOLVES: wolves, Side.TOWN: town}
        players = {
            seat: local_player(kinds[role.side], game, seat, deal) for seat, role in game.state.roles.items()
        }
        score.add(game, play_local(game, players))
    return score


def table(preset: str, players: Sequence[str], games: int) -> dict[str, dict[str, Score]]:
    """Wolves → town → score."""
    return {w: {t: pairing(preset, w, t, games) for t in players} for w in players}


def main() -> None:
    """Print the table of wolf win rates; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m werewolf.tournament", description=__doc__)
    parser.add_argument("--preset", default="mini7")
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--players", nargs="+", default=list(NAMES), choices=NAMES)
    arguments = parser.parse_args()
    scores = table(arguments.preset, arguments.players, arguments.games)
    print(f"{arguments.preset}, {arguments.games} games: won by the wolves (rows) against the town (columns)")
    print(f"{'':>10}" + "".join(f"{t:>22}" for t in arguments.players))
    for wolves, row in scores.items():
        cells = (
            f"{s.rate(Side.WOLVES):.3f} ({s.ci(Side.WOLVES)[0]:.2f}–{s.ci(Side.WOLVES)[1]:.2f})"
            for s in row.values()
        )
        print(f"{wolves:>10}" + "".join(f"{cell:>22}" for cell in cells))
    found = {
        w: {
            t: {
                "wolves": s.rate(Side.WOLVES),
                "ci": s.ci(Side.WOLVES),
                "days": s.days / s.games,
                "alive": s.roles(),
            }
            for t, s in row.items()
        }
        for w, row in scores.items()
    }
    print(json.dumps({"preset": arguments.preset, "games": arguments.games, "table": found}))


if __name__ == "__main__":
    main()
