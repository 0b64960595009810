"""The agent's memory: what it read, where it was and what it saw there; :meth:`Notes.text` is the next
prompt.

A model that is shown the whole game again each turn would read thousands of tokens by its end. The agent
keeps notes instead, in its own words, and forgets the rest: a prompt has about a hundred words at any turn.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from text_world.playing import Thing, View

USEFUL = ("fridge", "stove", "oven", "BBQ", "knife", "cookbook")
"""Things of another room that are kept in mind, beside what is on the list."""
DIRECTION = re.compile(r"^\s*(\w+) the (.+?)\s*$", re.MULTILINE)
"""A line of a recipe: what to do with what."""
DONE = {
    "chop": "chopped",
    "slice": "sliced",
    "dice": "diced",
    "fry": "fried",
    "roast": "roasted",
    "grill": "grilled",
}
"""What a recipe says → what a thing is like afterwards."""
OTHER_WAY = {"north": "south", "south": "north", "east": "west", "west": "east"}


@dataclass
class Place:
    """A room as it was left: the things in it, and where each way leads, if that is known."""

    things: tuple[Thing, ...] = ()
    ways: dict[str, str | None] = field(default_factory=dict)


@dataclass
class Wanted:
    """A thing on the list, and what is to be done with it."""

    name: str
    steps: list[str] = field(default_factory=list)


@dataclass
class Notes:
    """What the agent knows. ``view`` is what it sees now."""

    view: View
    places: dict[str, Place] = field(default_factory=dict)
    wanted: list[Wanted] = field(default_factory=list)
    log: list[tuple[str, str, str]] = field(default_factory=list)
    """Each command that the game took: where, what, and what was read. Prompts have the last one alone."""
    last: str = "none"

    def __post_init__(self) -> None:
        self._see(self.view)

    def _see(self, view: View) -> Place:
        self.view = view
        here = self.places.setdefault(view.room, Place())
        here.things = view.things
        for way in view.exits:
            here.ways.setdefault(way.direction, None)
        return here

    def did(self, command: str, read: str | None, view: View) -> None:
        """Note a command, what came of it, as :meth:`Playing.do` tells it, and what is seen after it."""
        left, here = self.view.room, self._see(view)
        self.last = f"{command}: {'refused' if read is None else 'done'}"
        if read is None:
            return
        self.log.append((left, command, read))
        direction = command.removeprefix("go ")
        if left != view.room and direction in OTHER_WAY:
            self.places[left].ways[direction] = view.room
            here.ways[OTHER_WAY[direction]] = left
        if steps := DIRECTION.findall(read):
            names = dict.fromkeys(name for _, name in steps)
            self.wanted = [Wanted(name, [do for do, what in steps if what == name]) for name in names]
        elif read:
            self.last += f". {read.strip()}"

    def meant(self, said: str) -> str:
        """The game's command for what the model said: a step on the way to a room for ``go`` with its name, a
        step towards the nearest exit that was never taken for ``explore``, else the same words.
        """
        verb, _, room = said.partition(" ")
        if verb == "go" and room in self.ways():
            return f"go {self.ways()[room]}"
        if said != "explore" or not (way := self.unseen()):
            return said
        doors = [one.door for one in self.view.exits if one.direction == way and one.closed]
        return f"open {doors[0]}" if doors else f"go {way}"

    # ------------------------------------------------------------------------------------------ what follows
    def ways(self) -> dict[str, str]:
        """Each other room that was seen → the direction of the shortest known way to it, nearest first."""
        return {room: first for room, first in self._reached() if room is not None}

    def unseen(self) -> str | None:
        """The direction of the shortest known way to an exit that was never taken."""
        return next((first for room, first in self._reached() if room is None), None)

    def _reached(self) -> list[tuple[str | None, str]]:
        start = self.view.room
        found: list[tuple[str | None, str]] = []
        done, queue = {start}, deque([(start, "")])
        while queue:
            room, first = queue.popleft()
            for direction, there in self.places[room].ways.items():
                if there is None or there not in done:
                    found.append((there, first or direction))
                if there is not None and there not in done:
                    done.add(there)
                    queue.append((there, first or direction))
        return found

    def whereabouts(self, name: str) -> str:
        """Where a thing is: ``carried``, ``here``, a room, or ``not seen``."""
        if any(one.name == name for one in self.view.carried):
            return "carried"
        if any(one.name == name for one in self.view.things):
            return "here"
        rooms = (room for room in self.ways() if any(one.name == name for one in self.places[room].things))
        return next(rooms, "not seen")

    def kept(self, room: str) -> list[str]:
        """What is kept in mind of another room."""
        wanted = {one.name for one in self.wanted}
        named = [one for one in self.places[room].things if one.name in wanted or one.name in USEFUL]
        if self.wanted:
            named = [one for one in named if one.name != "cookbook"]
        return [f"{one.name}{' (closed)' if 'closed' in one.states else ''}" for one in named]

    def left(self, one: Wanted) -> list[str]:
        """What a thing on the list still needs, as far as is seen."""
        states = next((thing.states for thing in self.view.carried if thing.name == one.name), ())
        return [step for step in one.steps if DONE.get(step) not in states]

    # -------------------------------------------------------------------------------------------- the prompt
    def text(self) -> str:
        """The next prompt."""
        view = self.view
        ways = self.places[view.room].ways
        doors = {one.direction: f" by {one.door} (closed)" if one.closed else "" for one in view.exits}
        exits = [f"{way} {ways[way] or 'new'}{door}" for way, door in doors.items()]
        elsewhere = [f"{room}: {', '.join(kept)}" for room in self.ways() if (kept := self.kept(room))]
        if self.unseen():
            elsewhere.append("more to explore")
        lines = {
            "Room": view.room,
            "Here": ", ".join(map(str, view.things)) or "nothing",
            "Exits": ", ".join(exits),
            "Carried": ", ".join(map(str, view.carried)) or "nothing",
            "List": self._list(),
            "Known": "; ".join(elsewhere) or "nothing",
            "Last": self.last,
        }
        return "\n".join(f"{label}: {text}" for label, text in lines.items())

    def _list(self) -> str:
        if self.whereabouts("meal") == "carried":
            return "prepared"
        return "; ".join(map(self._item, self.wanted)) or "not read"

    def _item(self, one: Wanted) -> str:
        return f"{', '.join(self.left(one)) or 'done'} {one.name}: {self.whereabouts(one.name)}"
