"""One rollout as a page that needs nothing else: both sides of the talk, the tools, and the database.

The database at the end is that of the task after the calls that stand in the talk, made again in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from agentlightning.types import Record, UsageError
from desk.customer import NAME
from desk.shop import COLUMNS, Shop
from desk.tasks import wanted

HERE = Path(__file__).resolve().parent
TITLES = (*COLUMNS, "refunded")


@dataclass(frozen=True)
class Turn:
    """What was said or called, by ``who``: customer, desk or tool."""

    who: str
    text: str
    said: str = ""
    """What a tool answered."""


@dataclass(frozen=True)
class Cell:
    """A value of the database before and after the talk, and as the policy wants it."""

    before: Any
    after: Any
    wanted: Any


def story(record: Record) -> dict[str, Any]:
    """What the page shows of a rollout."""
    mine = [call for call in record.calls if call.tags.get("agent") != NAME]
    if not mine:
        raise UsageError(f"rollout {record.rollout.rollout_id} has no model call of the desk to show")
    task: dict[str, Any] = record.rollout.input
    last = max(mine, key=lambda call: (call.sequence, call.choice))
    messages = [*(last.request or {}).get("messages", ()), last.response or {}]
    with closing(Shop(task["orders"])) as shop:
        before = shop.state()
        turns = [turn for one in messages for turn in _turns(one, shop)]
        found = shop.state()
    rows = [
        [Cell(*values) for values in zip(*states, strict=True)]
        for states in zip(before, found, wanted(task), strict=True)
    ]
    return {
        "task": task,
        "turns": turns,
        "titles": TITLES,
        "rows": rows,
        "right": found == wanted(task),
        "rollout": record.rollout.rollout_id,
    }


def _turns(message: Mapping[str, Any], shop: Shop) -> Sequence[Turn]:
    text = str(message.get("content") or "")
    if message.get("role") == "user":
        return [Turn("customer", text)]
    if message.get("role") != "assistant":
        return []  # the policy document, and answers of tools, which stand beside their calls
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return [
        *([Turn("desk", text or "(nothing)")] if text or not called else []),
        *(
            Turn("tool", f"{one['name']} {one['arguments']}", shop.call(one["name"], one["arguments"]))
            for one in called
        ),
    ]


def html(told: Mapping[str, Any]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("view.html.jinja").render(**told)
