"""One rollout as a page that needs nothing else: question, what was searched and read, answer, gold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from agentlightning.types import Record, UsageError
from search.grading import grade

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Look:
    """A call of a tool, and what it said; empty where the rollout ended before."""

    tool: str
    argument: str
    said: str
    gold: bool
    """Whether it read, or found, a document that the question needs."""


def story(record: Record) -> dict[str, Any]:
    """What the page shows of a rollout."""
    calls = sorted(record.calls, key=lambda call: (call.sequence, call.choice))
    if not calls:
        raise UsageError(f"rollout {record.rollout.rollout_id} has no model call to show")
    task: dict[str, Any] = record.rollout.input
    last = calls[-1]
    messages = [*(last.request or {}).get("messages", ()), last.response or {}]
    said = {one["tool_call_id"]: str(one["content"]) for one in messages if one.get("role") == "tool"}
    looks = [
        _look(call, said, task["documents"])
        for one in messages
        if one.get("role") == "assistant"
        for call in one.get("tool_calls") or ()
    ]
    ended = not messages[-1].get("tool_calls")
    answer = str(messages[-1].get("content") or "") if ended else None
    return {
        "task": task,
        "looks": looks,
        "answer": answer,
        "right": bool(grade(answer, task["answer"])),
        "rollout": record.rollout.rollout_id,
    }


def _look(call: Mapping[str, Any], said: Mapping[str, str], needed: list[str]) -> Look:
    function = call["function"]
    try:
        argument = ", ".join(map(str, json.loads(function["arguments"]).values()))
    except (ValueError, AttributeError):
        argument = str(function["arguments"])
    found = said.get(str(call.get("id")), "")
    shown = argument if function["name"] == "read" else found
    return Look(function["name"], argument, found, any(title in shown for title in needed))


def html(told: Mapping[str, Any]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("journey.html.jinja").render(**told)
