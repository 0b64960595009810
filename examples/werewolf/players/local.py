"""Local players by name: ``random``, ``scripted``, ``oracle``, and ``half`` (random in every second
decision).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from werewolf.engine import Answer, Ask, Game
from werewolf.players.base import LocalPlayer, RandomPlayer
from werewolf.players.oracle import OraclePlayer
from werewolf.players.scripted import ScriptedPlayer
from werewolf.wording import Wording, wording

NAMES = ("random", "half", "scripted", "oracle")


class UnknownPlayer(ValueError):
    """No player has that name."""


class HalfPlayer(ScriptedPlayer):
    """Scripted, and random in every second decision on the average."""

    def choose(self, ask: Ask) -> Answer:
        if self.chance.random() < 0.5:
            return RandomPlayer(self.seat, self.chance, self.wording).choose(ask)
        return super().choose(ask)


def local_player(name: str, game: Game, seat: int, seed: object, words: Wording | None = None) -> LocalPlayer:
    """The player of that name for a seat of ``game``; its lots are a function of ``seed`` and seat."""
    chance = random.Random(f"werewolf:player:{name}:{seed}:{seat}")
    words = words or wording("zh")
    if name == "random":
        return RandomPlayer(seat, chance, words)
    if name == "oracle":
        return OraclePlayer(seat, game.rules.seats, chance, words).watch(game)
    kinds: Mapping[str, type[ScriptedPlayer]] = {"scripted": ScriptedPlayer, "half": HalfPlayer}
    if name not in kinds:
        raise UnknownPlayer(f"there is no player {name!r}; choose one of {', '.join(NAMES)}")
    return kinds[name](seat, game.rules.seats, chance, words)
