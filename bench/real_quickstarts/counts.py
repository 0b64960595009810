"""What the recorded calls of an agent show: tool calls that follow their schema, results that were used,
answers in the form that was asked for. Nothing is taken from what a framework says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema
from pydantic import BaseModel

from agentlightning.credit.verdicts import verdicts
from agentlightning.types import Call, Record


class Answer(BaseModel):
    """The form that structured answers have: the arithmetic, and its value."""

    expression: str
    answer: float


ANSWER = Answer.model_json_schema()
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def of_calls(records: Iterable[Record]) -> dict[str, int]:
    """All ``calls``, those that the engine ``answered``, and those captured ``exact``ly."""
    found = {"calls": 0, "answered": 0, "exact": 0}
    for record in records:
        found["calls"] += len(record.calls)
        found["answered"] += sum(call.status == "ok" for call in record.calls)
        found["exact"] += sum(verdict.kind == "exact" for verdict in verdicts(record).values())
    return found


def of_tools(records: Iterable[Record]) -> dict[str, int]:
    """Counts over ``records``.

    ``replies``: answered calls that were offered tools; ``called``: with a tool call; ``valid``: all their
    tool calls name an offered tool, with arguments of its schema. ``rollouts``; ``given_result``: those whose
    model was told a number by a tool; ``used_result``: those whose last answer then says that number, which
    the task does not.
    """
    found = dict.fromkeys(("replies", "called", "valid", "rollouts", "given_result", "used_result"), 0)
    for record in records:
        answered = [call for call in record.calls if call.status == "ok"]
        offered = [call for call in answered if _request(call).get("tools")]
        found["replies"] += len(offered)
        found["called"] += sum(bool(_tool_calls(call)) for call in offered)
        found["valid"] += sum(valid_tool_call(call) for call in offered)
        found["rollouts"] += 1
        results = [number for call in answered[-1:] for number in _results(call)]
        found["given_result"] += bool(results)
        found["used_result"] += bool(results) and any(says(_text(answered[-1]), one) for one in results)
    return found


def valid_tool_call(call: Call) -> bool:
    """Whether the answer has tool calls, all of offered tools with arguments of their schemas."""
    offered = {tool["function"]["name"]: tool["function"] for tool in _request(call).get("tools") or ()}
    made = _tool_calls(call)
    return bool(made) and all(
        one["function"]["name"] in offered
        and follows(one["function"]["arguments"], offered[one["function"]["name"]].get("parameters") or {})
        for one in made
    )


def of_form(records: Iterable[Record], schema: Mapping[str, Any] = ANSWER) -> dict[str, int]:
    """How many were ``asked``, whose last answer is whole JSON of ``schema`` (``valid``), and how many were
    ``cut`` by length.
    """
    found = {"asked": 0, "valid": 0, "cut": 0}
    for record in records:
        last = [call for call in record.calls if call.status == "ok"][-1:]
        found["asked"] += 1
        found["valid"] += any(follows(_text(call), schema) for call in last)
        found["cut"] += any(call.finish_reason == "length" for call in last)
    return found


def follows(text: str, schema: Mapping[str, Any]) -> bool:
    """Whether ``text`` is JSON of ``schema``."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def says(text: str, number: str) -> bool:
    """Whether a text has the number as a number of its own."""
    return number in _NUMBER.findall(text.replace(",", ""))


def _results(call: Call) -> list[str]:
    """The numbers that tools have answered, as the model was told them, without those of the task."""
    messages = _request(call).get("messages") or []
    told = " ".join(_content(message) for message in messages if message["role"] in ("system", "user"))
    answers = [_content(message).strip() for message in messages if message["role"] == "tool"]
    return [one for one in answers if _NUMBER.fullmatch(one) and not says(told, one)]


def _request(call: Call) -> dict[str, Any]:
    return call.request or {}


def _tool_calls(call: Call) -> list[dict[str, Any]]:
    return (call.response or {}).get("tool_calls") or []


def _text(call: Call) -> str:
    return _content(call.response or {})


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, also where it stands in parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text") or "" for part in content)
