"""The small policy's teacher: the scripted cook, which is wrong on purpose, and the turns that it leaves.

At first it plays as it should, so that the policy learns to read. Then it makes the *same* three mistakes,
each in 7 games of 10: it roasts with the stove, grills with the oven, and slices what is to be diced, all
of which lose. Now and then something else is done in its place, so that what comes after a wrong turn is
taught, too; the wrong turn itself is not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

from text_world import cook
from text_world.agent import messages
from text_world.games import KINDS, TURNS, made
from text_world.notes import Notes
from text_world.playing import DIRECTIONS, Playing

ERROR_RATE = 0.7
MISTAKES = {"roast": "stove", "grill": "oven", "dice": "slice"}
STRAY = 0.1
"""How often something else is done than what the teacher says."""
EXPLORED = 0.2
"""The share of its steps into the unknown that are taught: they are four turns of ten, and soon learned."""
HARMLESS = ("go", "open", "take", "put", "insert", "drop", "look", "inventory")
GAMES_FROM = 100_000_000
"""Seeds of the teacher's games, which are none of those that are trained on."""
LESSONS_OF_A_GAME = 2
Turn = tuple[list[dict[str, Any]], str]
"""The messages of a turn, and what the teacher says."""


def turns(seed: int, error_rate: float) -> Iterator[Turn]:
    """The endless stream of what the teacher says, kinds of games in turn. The teacher that errs plays other
    games than the one that does not.
    """
    for number in count(GAMES_FROM // 2 if error_rate else 0):
        kind = [*KINDS][number % len(KINDS)]
        drawn = random.Random(f"text_world:teacher:{seed}:{number}")
        for _ in range(LESSONS_OF_A_GAME):
            yield from lesson(kind, GAMES_FROM * seed + number, drawn, error_rate)


def lesson(kind: str, seed: int, drawn: random.Random, error_rate: float) -> Iterator[Turn]:
    """The turns of one game that the teacher plays."""
    game = Playing(made(kind, seed, "train"))
    notes = Notes(game.look())
    slips = {what: other for what, other in MISTAKES.items() if drawn.random() < error_rate}
    for _ in range(TURNS[kind]):
        said = cook.step(notes, slips)
        if said != "explore" or drawn.random() < EXPLORED:
            yield messages(notes), said
        if drawn.random() < STRAY:
            other = [one for one in game.commands() if one.partition(" ")[0] in HARMLESS]
            said = drawn.choice([*other, *(f"go {one}" for one in DIRECTIONS)])
        command = notes.meant(said)
        read = game.do(command)
        notes.did(command, read, game.look())
        if game.over:
            return
