"""Scripted models: an agent's model that does what its prompt says, a critic and an editor.

The agent's model knows nothing by itself. It keeps those rules of choosing that its prompt states, and takes
the first room that they leave. The critic reads rollouts as any critic would, and names the rule whose lack
explains a wrong choice. The editor adds what the critique asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from agl_testing import tool_call

from room_selector.rooms import NO_ROOM, Room

_ASKED = re.compile(
    r"on (?P<date>\S+) at (?P<time>\S+) for (?P<duration>\d+) minutes, (?P<attendees>\d+) attendees\. "
    r"Needs: \[(?P<needs>[^\]]*)\]\. Accessible required: (?P<accessible>True|False)"
)
Asked = dict[str, Any]
Hard = Callable[[Room, Asked], bool]
Soft = Callable[[Room, Asked], int]
HARD: dict[str, tuple[str, Hard]] = {
    "free": ("The room must be free for the whole slot.", lambda room, asked: room["free"]),
    "seats": (
        "The room must have seats for all attendees.",
        lambda room, asked: room["capacity"] >= asked["attendees"],
    ),
    "equipment": (
        "The room must have all the equipment that is needed.",
        lambda room, asked: set(asked["needs"]) <= set(room["equipment"]),
    ),
    "accessible": (
        "If accessible is required, the room must be accessible.",
        lambda room, asked: room["accessible"] or not asked["accessible"],
    ),
}
"""Name → the sentence that states a rule, and whether a room keeps it."""
SOFT: dict[str, tuple[str, Soft]] = {
    "fewest seats": (
        "Of several rooms take the one with the fewest seats.",
        lambda room, asked: room["capacity"],
    ),
    "least equipment": (
        "Among equals take the one with the least equipment.",
        lambda room, asked: len(room["equipment"]),
    ),
    "nearest": ("Among equals after that take the nearest.", lambda room, asked: room["distance_m"]),
}
NONE = f"If no room fits, answer {NO_ROOM}."


def read_request(text: str) -> Asked | None:
    """Return the meeting that a filled prompt asks for."""
    found = _ASKED.search(text)
    if found is None:
        return None
    return {
        "date": found["date"],
        "time": found["time"],
        "duration_min": int(found["duration"]),
        "attendees": int(found["attendees"]),
        "needs": re.findall(r"'([^']+)'", found["needs"]),
        "accessible": found["accessible"] == "True",
    }


def obedient(body: dict[str, Any]) -> Any:
    """Answer as a model that keeps the rules of its prompt and knows no others."""
    messages = body["messages"]
    prompt = next(one["content"] for one in messages if one["role"] == "user")
    asked = read_request(prompt)
    if asked is None:
        return "I do not understand the request."
    if messages[-1]["role"] != "tool":
        wanted = {name: asked[name] for name in ("date", "time", "duration_min")}
        return tool_call("get_rooms_and_availability", wanted)
    return f"final_choice: {choose(json.loads(messages[-1]['content'])['rooms'], asked, prompt)}"


def choose(rooms: list[Room], asked: Asked, prompt: str) -> str:
    """Return the room that the rules of ``prompt`` lead to."""
    fit = [
        room for room in rooms if all(keeps(room, asked) for said, keeps in HARD.values() if said in prompt)
    ]
    if not fit:
        return NO_ROOM if NONE in prompt else rooms[0]["id"]
    order = [value for said, value in SOFT.values() if said in prompt]
    return min(fit, key=lambda room: [value(room, asked) for value in order])["id"]


def critic(body: dict[str, Any]) -> str:
    """Name the rule whose lack explains the first wrong choice of the rollouts that are shown."""
    text = body["messages"][-1]["content"]
    prompt = text.partition("<prompt>\n")[2].partition("\n</prompt>")[0]
    for run in text.split("\n\nRun ")[1:]:
        if not run.rstrip().endswith("Reward: 0"):
            continue
        if (lack := _lack(run, prompt)) is not None:
            return lack
    return "The rollouts show no rule that the prompt lacks."


def _lack(run: str, prompt: str) -> str | None:
    task = json.loads(re.search(r"^Task: (.*)$", run, re.MULTILINE)[1])  # type: ignore[index]
    wanted = task["task_input"]
    asked = {**wanted, "accessible": wanted["accessible_required"]}
    shown = re.findall(r"^tool: (.*)$", run, re.MULTILINE)
    answers = re.findall(r"final_choice: (.+)$", run, re.MULTILINE)
    if not shown or not answers:
        return None
    rooms = {room["id"]: room for room in json.loads(shown[-1])["rooms"]}
    took, right = answers[-1].strip(), task["expected_choice"]
    if took in rooms:
        for name, (said, keeps) in HARD.items():
            if said not in prompt and not keeps(rooms[took], asked):
                return f"The prompt lacks a rule: {name}. {took} was taken against it."
    if right == NO_ROOM and NONE not in prompt:
        return f"The prompt lacks a rule: none. No room fits, and {took} was taken."
    if took in rooms and right in rooms:
        for name, (said, value) in SOFT.items():
            if said not in prompt and value(rooms[took], asked) > value(rooms[right], asked):
                return f"The prompt lacks a rule: {name}. {right} is better than {took} by it."
    return None


def editor(body: dict[str, Any]) -> str:
    """Add the rule that the critique names to the prompt."""
    text = body["messages"][-1]["content"]
    prompt = text.partition("<prompt>\n")[2].partition("\n</prompt>")[0]
    found = re.search(r"lacks a rule: ([a-z ]+)\.", text.rpartition("Critique:")[2])
    rules = {**{name: said for name, (said, _) in [*HARD.items(), *SOFT.items()]}, "none": NONE}
    added = rules.get(found[1]) if found else None
    return f"<prompt>{prompt} {added}</prompt>" if added else f"<prompt>{prompt}</prompt>"


def helper(body: dict[str, Any]) -> str:
    """Answer as critic or editor, whichever is asked."""
    return editor(body) if "Critique:" in body["messages"][-1]["content"] else critic(body)
