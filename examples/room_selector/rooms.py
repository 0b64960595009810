"""The rooms, the tool that lists them, and the rule by which one of them is right.

A room must be free for the slot, hold the attendees, have the equipment, and be accessible if that is asked.
Of those that do, the right one wastes the fewest seats, then has the least further equipment, then is the
nearest, then has the fewest bookings that day. If there is none, ``No Room`` is right.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TypedDict

from agentlightning.types.base import read_json_lines

DATA = Path(__file__).parent / "data"
NO_ROOM = "No Room"
_CHOICE = re.compile(r"final_choice:\s*(.+)", re.IGNORECASE)


class Meeting(TypedDict):
    """What a room is needed for."""

    date: str
    time: str
    duration_min: int
    attendees: int
    needs: list[str]
    accessible_required: bool


class Task(TypedDict):
    """A meeting and the room that is right for it."""

    id: str
    task_input: Meeting
    expected_choice: str


class Room(TypedDict):
    """A room, and whether it is free for a slot."""

    id: str
    capacity: int
    equipment: list[str]
    accessible: bool
    distance_m: int
    booked: list[tuple[str, str, int]]
    free: bool


@cache
def _rooms() -> str:
    return (DATA / "rooms.json").read_text(encoding="utf-8")


def available(date: str, time: str, duration_min: int) -> list[Room]:
    """Return all rooms, each with whether it is free. Raise ``ValueError`` for a time that is none."""
    start = _minutes(time)
    rooms: list[Room] = json.loads(_rooms())
    for room in rooms:
        busy = [(_minutes(at), length) for day, at, length in room["booked"] if day == date]
        room["free"] = all(start + duration_min <= at or at + length <= start for at, length in busy)
    return rooms


def _minutes(time: str) -> int:
    hours, _, minutes = time.partition(":")
    if not (hours.isdigit() and minutes.isdigit() and int(hours) < 24 and int(minutes) < 60):
        raise ValueError(f"{time!r} is no time of day: write HH:MM")
    return int(hours) * 60 + int(minutes)


def right_choice(meeting: Meeting) -> str:
    """Return the room that is right for a meeting, or ``No Room``."""
    rooms = available(meeting["date"], meeting["time"], meeting["duration_min"])
    fit = [
        room
        for room in rooms
        if room["free"]
        and room["capacity"] >= meeting["attendees"]
        and set(meeting["needs"]) <= set(room["equipment"])
        and (room["accessible"] or not meeting["accessible_required"])
    ]

    def waste(room: Room) -> tuple[int, int, int, int]:
        booked = sum(day == meeting["date"] for day, _, _ in room["booked"])
        extra = len(room["equipment"]) - len(meeting["needs"])
        return room["capacity"] - meeting["attendees"], extra, room["distance_m"], booked

    return min(fit, key=waste)["id"] if fit else NO_ROOM


def chosen(answer: str) -> str | None:
    """Return the room that an answer names: after ``final_choice:``, else the only one in the text; ``None``
    for none or several.
    """
    names = [room["id"] for room in json.loads(_rooms())] + [NO_ROOM]
    found = _CHOICE.search(answer)
    text = found[1] if found else answer
    named = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)]
    return named[0] if len(named) == 1 else None


def grade(answer: str, expected: str) -> float:
    """Return 1.0 if the answer names the expected room and no other, else 0.0."""
    return float(chosen(answer) == expected)


def load(part: str = "all") -> list[Task]:
    """Return the tasks: ``train`` (28), ``val`` (29) or ``all``."""
    tasks: list[Task] = read_json_lines(DATA / "tasks.jsonl")
    parts = {"train": tasks[:28], "val": tasks[28:], "all": tasks}
    if part not in parts:
        raise ValueError(f"part {part!r}: choose train, val or all")
    return parts[part]
