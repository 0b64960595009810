"""What scripts without a model earn: ``python -m text_world.baselines``; the last line is one JSON object.

They keep the agent's notes and have as many turns. They see more than a policy does: the commands that the
game takes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from statistics import mean

from text_world import cook
from text_world.games import KINDS, Task, game_of, gold, tasks
from text_world.notes import Notes
from text_world.playing import Playing

Player = Callable[[Notes, Sequence[str], random.Random], str]
"""Notes, the commands that the game takes, chance → a command."""
COUNT = 192
"""Held-out games, those of ``cpu.yaml``."""
IDLE = ("look", "inventory", "close", "drop", "put", "insert", "eat", "examine")
"""What leads nowhere, takes back, or loses."""
MEAL = {"prepare meal", "eat meal"}
"""What ends a game. To prepare it uses up what it is made of, so the game takes one of the two at a time."""


def chance(notes: Notes, commands: Sequence[str], drawn: random.Random) -> str:
    """Any command that the game takes."""
    return drawn.choice(commands)


def explorer(notes: Notes, commands: Sequence[str], drawn: random.Random) -> str:
    """Ends the game if it can, else does what it has not done in this room, the nearest new way last."""
    if ends := [*MEAL & {*commands}]:
        return ends[0]
    fresh = [one for one in commands if one.partition(" ")[0] not in (*IDLE, "go") and _new(notes, one)]
    return drawn.choice(fresh) if fresh else cook.explored(notes) or drawn.choice(commands)


def reader(notes: Notes, commands: Sequence[str], drawn: random.Random) -> str:
    """Does what the recipe says in its words, takes what it names, and tries what it has not done to that."""
    return _by_words(notes, commands, drawn, looks=False)


def careful_reader(notes: Notes, commands: Sequence[str], drawn: random.Random) -> str:
    """The same, and before it cooks with a thing it examines it, and looks for the recipe's word in what it
    reads.
    """
    return _by_words(notes, commands, drawn, looks=True)


def scripted_cook(notes: Notes, commands: Sequence[str], drawn: random.Random) -> str:
    """Knows what the small policy has to learn: :mod:`text_world.cook`."""
    return cook.step(notes)


PLAYERS: dict[str, Player] = {
    "random": chance,
    "explorer": explorer,
    "reader": reader,
    "careful_reader": careful_reader,
    "cook": scripted_cook,
}


def _by_words(notes: Notes, commands: Sequence[str], drawn: random.Random, looks: bool) -> str:
    if "examine cookbook" in commands and not notes.wanted:
        return "examine cookbook"
    for one in notes.wanted:
        said = [c for c in commands if c.partition(" with ")[0] in {f"{do} {one.name}" for do in one.steps}]
        taken = [c for c in commands if c.startswith(f"take {one.name}")]
        if said or taken:
            return (said or taken)[0]
        if tried := _heated(notes, [c for c in commands if c.startswith(f"cook {one.name}")], drawn, looks):
            return tried
    # The recipe's last line; by then each thing was cut, in its words, and cooked somehow.
    done = [do for _, do, _ in notes.log if do.partition(" ")[0] in ("chop", "slice", "dice", "cook")]
    if len(done) >= sum(len(one.steps) for one in notes.wanted) and (ends := [*MEAL & {*commands}]):
        return ends[0]
    fresh = [c for c in commands if c.partition(" ")[0] in ("take", "open") and _new(notes, c)]
    at_hand = [c for c in fresh if notes.wanted and "door" not in c]
    return drawn.choice(at_hand) if at_hand else cook.explored(notes) or drawn.choice(commands)


def _heated(notes: Notes, ways: Sequence[str], drawn: random.Random, looks: bool) -> str | None:
    """One of the ways to cook a thing on the list, at most once; by what was read of it, if that was looked
    at.
    """
    if not ways:
        return None
    name = ways[0].removeprefix("cook ").partition(" with ")[0]
    if any(one.startswith(f"cook {name} with") for _, one, _ in notes.log):
        return None
    if not looks:
        return drawn.choice(ways)
    steps = next(one.steps for one in notes.wanted if one.name == name)
    for way in ways:
        look = f"examine {way.partition(' with ')[2]}"
        read = next((text for _, one, text in notes.log if one == look), None)
        if read is None:
            return look
        if any(step in read.lower() for step in steps):
            return way
    return None


def _new(notes: Notes, command: str) -> bool:
    return (notes.view.room, command) not in {(room, one) for room, one, _ in notes.log}


def played(one: Task, player: Player) -> float:
    """The reward of a player's game."""
    game, drawn = Playing(game_of(one)), random.Random(one["id"])
    notes = Notes(game.look())
    for _ in range(one["turns"]):
        command = notes.meant(player(notes, game.commands(), drawn))
        read = game.do(command)
        notes.did(command, read, game.look())
        if game.over:
            break
    return float(game.won)


def rewards(player: Player, held_out: Sequence[Task]) -> list[float]:
    """The reward of each game."""
    return [played(one, player) for one in held_out]


def oracle(one: Task) -> float:
    """Does the gold commands, but for those that the game does not take or that only look."""
    game = Playing(game_of(one))
    told = [command for command in gold(game_of(one)) if command not in ("inventory", "look")]
    done = [command for command in told if game.do(command) is not None]
    return float(game.won and len(done) <= one["turns"])


def main() -> None:
    """Print the mean reward of each."""
    held_out = tasks("heldout", COUNT)
    found = {name: rewards(player, held_out) for name, player in PLAYERS.items()}
    found["oracle"] = [oracle(one) for one in held_out]
    for name, earned in found.items():
        by_kind = {kind: mean([e for e, one in zip(earned, held_out, strict=True) if one["kind"] == kind])
                   for kind in KINDS}  # fmt: skip
        print(f"{name:>15} " + "  ".join(f"{kind} {value:.2f}" for kind, value in by_kind.items()))
    print(json.dumps({"tasks": len(held_out), **{name: round(mean(one), 3) for name, one in found.items()}}))


if __name__ == "__main__":
    main()
