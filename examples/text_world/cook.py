"""A scripted cook, who knows what the notes say and how the games are won: the small policy's teacher, with
slips.

What it knows beside the notes is what a policy has to learn: to fry is to cook with the stove, to roast
with the oven, to grill with the BBQ; and that what was cut or cooked once must not be so again.
"""

from __future__ import annotations

from collections.abc import Mapping

from text_world.notes import Notes, Wanted

TOOLS = {"fry": "stove", "roast": "oven", "grill": "BBQ"}
NOTHING_TO_DO = "look"


def step(notes: Notes, slips: Mapping[str, str] | None = None) -> str:
    """The next command. ``slips``: what it takes for what, such as the stove for the oven."""
    slips = slips or {}
    if notes.whereabouts("meal") == "carried":
        return "eat meal"
    if not notes.wanted:
        return _first(_at(notes, "cookbook", "examine cookbook"), explored(notes))
    knife = notes.whereabouts("knife")
    if knife == "here":
        return "take knife"
    for one in notes.wanted:
        if command := _prepared(notes, one, slips, knife):
            return command
    for one in notes.wanted:
        if notes.whereabouts(one.name) != "carried":
            return _fetched(notes, one)
    for one in notes.wanted:
        if command := _carried_on(notes, one, slips, knife):
            return command
    return _first("prepare meal" if _room(notes) == "kitchen" else None, _go(notes, "kitchen"))


def explored(notes: Notes) -> str | None:
    """A step towards an exit that was never taken; None: there is none."""
    return "explore" if notes.unseen() else None


def _prepared(notes: Notes, one: Wanted, slips: Mapping[str, str], knife: str) -> str | None:
    """What can be done here and now with a thing on the list."""
    place = notes.whereabouts(one.name)
    if place == "here":
        return f"take {one.name}"
    if place != "carried":
        return None
    for what in notes.left(one):
        tool = slips.get(what, TOOLS.get(what))
        if what in TOOLS and tool and notes.whereabouts(tool) == "here":
            return f"cook {one.name} with {tool}"
        if what not in TOOLS and knife == "carried":
            return f"{slips.get(what, what)} {one.name} with knife"
    return None


def _fetched(notes: Notes, one: Wanted) -> str:
    """A step on the way to a thing on the list."""
    place = notes.whereabouts(one.name)
    if place != "not seen":
        return _first(_go(notes, place))
    return _first(_opened(notes), explored(notes))


def _opened(notes: Notes) -> str | None:
    """The fridge, opened; a step on the way to it, if it is closed elsewhere."""
    if any(one.name == "fridge" and "closed" in one.states for one in notes.view.things):
        return "open fridge"
    rooms = [room for room in notes.ways() if "fridge (closed)" in notes.kept(room)]
    return _go(notes, rooms[0]) if rooms else None


def _carried_on(notes: Notes, one: Wanted, slips: Mapping[str, str], knife: str) -> str | None:
    """A step on the way to where the next thing can be done with something that is carried."""
    for what in notes.left(one):
        place = notes.whereabouts(slips.get(what, TOOLS[what])) if what in TOOLS else knife
        return _first(_go(notes, place) if place != "not seen" else None, explored(notes))
    return None


def _at(notes: Notes, name: str, command: str) -> str | None:
    return command if notes.whereabouts(name) == "here" else None


def _room(notes: Notes) -> str:
    return notes.view.room


def _go(notes: Notes, room: str) -> str | None:
    return f"go {room}" if room in notes.ways() else None


def _first(*commands: str | None) -> str:
    return next((one for one in commands if one), NOTHING_TO_DO)
