"""One game as it is played: the library says what a command does and what is won, and here is what a player
sees.

A compiled game prints text of its own, but compiling takes seconds a game. So the game is played by the
library's state of facts, and :meth:`Playing.look` tells of the facts that a player can see: those of the
room, of what is open, and of what is carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textworld.generator.game import Game, GameProgression
from textworld.generator.inform7 import Inform7Game

DIRECTIONS = ("north", "east", "south", "west")
STATES = ("closed", "chopped", "sliced", "diced", "fried", "roasted", "grilled", "burned")
"""What is told of a thing. A knife is sharp and food is raw whether it is told or not."""


@dataclass(frozen=True)
class Thing:
    """A thing in sight: where it lies (None: on the floor, or carried), and what it is like."""

    name: str
    holder: str | None = None
    within: bool = False
    """Whether it lies in its holder, not on it."""
    states: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f"{self.name} {'in' if self.within else 'on'} {self.holder}" if self.holder else self.name
        return f"{words} ({', '.join(self.states)})" if self.states else words


@dataclass(frozen=True)
class Exit:
    """A way out of a room, with its door."""

    direction: str
    door: str | None = None
    closed: bool = False


@dataclass(frozen=True)
class View:
    """What a player sees."""

    room: str
    things: tuple[Thing, ...]
    exits: tuple[Exit, ...]
    carried: tuple[Thing, ...]


class Playing:
    """A game under way. Many may be played of one :class:`Game`, which none of them changes."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._now = GameProgression(game)
        self._text = Inform7Game(game)

    @property
    def won(self) -> bool:
        """Whether the meal was eaten as the recipe has it."""
        return bool(self._now.completed)

    @property
    def over(self) -> bool:
        """Whether the game is won or lost."""
        return bool(self._now.done)

    def commands(self) -> list[str]:
        """The commands that the game takes now."""
        return sorted({*self._text.gen_commands_from_actions(self._now.valid_actions)})

    def do(self, command: str) -> str | None:
        """Do a command, and return what is read: a text for ``examine``, else an empty one. None: the game
        does not take the command, and nothing happened. As in a compiled game, ``take carrot`` will do for
        ``take carrot from counter``.
        """
        actions = self._now.valid_actions
        commands: list[str] = self._text.gen_commands_from_actions(actions)
        longer = (one for one in commands if one.startswith("take ") and one.startswith(f"{command} from "))
        whole = next(longer, command)
        if whole not in commands:
            return None
        action = actions[commands.index(whole)]
        self._now.update(action)
        read = action.variables[-1].name if action.name.startswith("examine") else None
        text = self._game.infos[read].desc if read else ""
        return str(text or "") if "[" not in (text or "") else ""  # the rest is code of the compiled game

    def look(self) -> View:
        """What the player sees."""
        facts = _by_name(self._now.state.facts)
        room = next(b for a, b in facts["at"] if a == "P")
        states: dict[str, tuple[str, ...]] = {}
        for state in STATES:
            for (one,) in facts.get(state, ()):
                states[one] = (*states.get(one, ()), state)
        shut = {one for one, found in states.items() if "closed" in found}

        def thing(one: str, holder: str | None = None, within: bool = False) -> Thing:
            return Thing(self._name(one), holder and self._name(holder), within, states.get(one, ()))

        seen = [one for one, place in facts["at"] if place == room and one != "P"]
        held = [(one, holder, False) for one, holder in facts.get("on", ()) if holder in seen]
        held += [(one, box, True) for one, box in facts.get("in", ()) if box in seen and box not in shut]
        things = [*map(thing, sorted(seen)), *(thing(*one) for one in sorted(held))]
        doors = {b: self._door(d, shut) for a, d, b in facts.get("link", ()) if a == room}
        exits = [
            Exit(direction, *doors.get(there, (None, False)))
            for direction in DIRECTIONS
            for there, here in facts.get(f"{direction}_of", ())
            if here == room
        ]
        carried = [thing(one) for one, holder in sorted(facts.get("in", ())) if holder == "I"]
        return View(self._name(room), tuple(things), tuple(exits), tuple(carried))

    def _name(self, one: str) -> str:
        return str(self._game.infos[one].name)

    def _door(self, one: str, shut: set[str]) -> tuple[str, bool]:
        return self._name(one), one in shut


def _by_name(facts: Sequence[Any]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for fact in facts:
        found.setdefault(fact.name, []).append(tuple(one.name for one in fact.arguments))
    return found
