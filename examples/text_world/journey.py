"""One rollout as a page that needs nothing else: what the agent saw and noted at each turn, and what it
did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from agentlightning.types import Record, UsageError

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Turn:
    """A turn: the room, the lines of the notes, the command, and whether the game took it. None: the notes
    do not tell, as there was no turn after it.
    """

    room: str
    lines: tuple[tuple[str, str], ...]
    command: str
    taken: bool | None


def story(record: Record) -> dict[str, Any]:
    """What the page shows of a rollout."""
    calls = sorted(record.calls, key=lambda call: (call.sequence, call.choice))
    if not calls:
        raise UsageError(f"rollout {record.rollout.rollout_id} has no model call to show")
    notes = [_lines(call.request or {}) for call in calls]
    taken = [one.get("Last", "").endswith("refused") for one in notes[1:]]
    turns = [
        Turn(
            one.get("Room", ""),
            tuple((label, text) for label, text in one.items() if label != "Room"),
            str((call.response or {}).get("content") or ""),
            not taken[number] if number < len(taken) else None,
        )
        for number, (call, one) in enumerate(zip(calls, notes, strict=True))
    ]
    rewards = [one.value for one in record.rewards if one.final]
    return {
        "task": record.rollout.input,
        "turns": turns,
        "won": bool(rewards and rewards[-1] > 0),
        "rollout": record.rollout.rollout_id,
    }


def _lines(request: Mapping[str, Any]) -> dict[str, str]:
    """The labelled lines of a prompt."""
    messages = request.get("messages") or [{}]
    parted = (line.partition(": ") for line in str(messages[-1].get("content") or "").splitlines())
    return {label: text for label, _, text in parted if text}


def html(told: Mapping[str, Any]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("journey.html.jinja").render(**told)
