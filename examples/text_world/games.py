"""Which games are played: TextWorld's cooking games (those of *First TextWorld Problems*), made from seeds.

A player wakes somewhere in a house, must find the cookbook in the kitchen, fetch what it names, cut and
cook each as it says, prepare the meal and eat it. Rooms, doors, food, distractors and recipe are drawn by
the library's own generator. What is held out is its split ``test``: no food is prepared there as it is
anywhere in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import chain, count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

from textworld import GameMaker, GameOptions
from textworld.challenges.tw_cooking import cooking
from textworld.generator.data import KnowledgeBase
from textworld.generator.game import Game

Split = Literal["train", "heldout"]
Task = dict[str, Any]
KINDS: dict[str, dict[str, int]] = {
    "kitchen": {"recipe": 1, "go": 6},
    "yard": {"recipe": 1, "go": 9},
    "two": {"recipe": 2, "go": 9},
}
"""Kind of game → ingredients and rooms. In six rooms all that is needed is in the kitchen; nine have a
garden, with food of its own, and a backyard, with a BBQ.
"""
TURNS = {"kitchen": 16, "yard": 26, "two": 32}
"""Commands that a player has."""
HELD_OUT = Path(__file__).resolve().parent / "heldout.json"
EACH = 64
"""Held-out games of a kind."""


@lru_cache(maxsize=256)
def made(kind: str, seed: int, split: Split) -> Game:
    """The game of a seed, the same every time.

    The generator would also compile each game for a Z-machine and play its gold commands there, for
    seconds, to keep them in the game's quests. They stand in the game's metadata as well, and nothing here
    reads the quests' copy.
    """
    options = GameOptions()
    options.seeds = seed
    settings = {
        **KINDS[kind], "take": KINDS[kind]["recipe"], "open": True, "cook": True, "cut": True, "drop": False,
        "recipe_seed": seed, "split": "train" if split == "train" else "test",
    }  # fmt: skip
    rules = SimpleNamespace(load=_rules)
    with patch.object(GameMaker, "set_walkthrough"), patch.object(cooking, "KnowledgeBase", rules):
        return cooking.make(settings, options)


@cache
def _rules(logic_path: str, grammar_path: str) -> KnowledgeBase:
    """The rules of the cooking games, which are parsed once: that takes longer than all else."""
    return KnowledgeBase.load(logic_path=logic_path, grammar_path=grammar_path)


def gold(game: Game) -> list[str]:
    """Commands that win a game, as its generator gives them."""
    commands: list[str] = game.metadata["walkthrough"]
    return commands


def tasks(split: Split, limit: int, seed: int = 1) -> list[Task]:
    """Games of a split, kinds in turn. ``seed``: which of the endless games of training."""
    kept: dict[str, list[int]] = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    seeds = {kind: kept[kind] if split == "heldout" else count(1_000_000 * seed) for kind in KINDS}
    dealt = chain.from_iterable(zip(*seeds.values(), strict=False))
    kinds = chain.from_iterable(iter(lambda: [*KINDS], None))
    return [task(kind, number, split) for kind, number in islice(zip(kinds, dealt, strict=False), limit)]


def task(kind: str, seed: int, split: Split) -> Task:
    """A game as a task."""
    return {"id": f"{kind}-{seed}", "kind": kind, "seed": seed, "split": split, "turns": TURNS[kind]}


def game_of(one: Task) -> Game:
    """The game of a task."""
    return made(one["kind"], one["seed"], one["split"])


def playable(kind: str) -> Iterator[int]:
    """Seeds of held-out games in whose recipes no food is new: a small policy has no word for food it never
    saw.
    """
    known = {*cooking.FOODS_SPLITS["train"]}
    for seed in count(1):
        if {food for food, _, _ in made(kind, seed, "heldout").metadata["ingredients"]} <= known:
            yield seed


if __name__ == "__main__":
    found = {kind: [*islice(playable(kind), EACH)] for kind in KINDS}
    HELD_OUT.write_text(json.dumps(found) + "\n", encoding="utf-8")
