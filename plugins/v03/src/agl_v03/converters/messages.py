"""Convert the spans of model calls to OpenAI messages: the prompt and the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning import semconv
from agentlightning.types import Span
from agl_v03.converters.base import Converter, deduplicate

Messages = dict[str, Any]
"""``{"messages": […]}``, and ``"tools"`` where the call offered some."""


class TraceToMessages(Converter[list[Messages]]):
    """Makes one conversation of each model call, in order of start: the prompt's messages and the answer."""

    def adapt(self, spans: Sequence[Span], /) -> list[Messages]:
        """Return the conversations of one attempt's spans."""
        calls = [s for s in spans if s.name == semconv.CALL_SPAN]
        calls.sort(key=lambda s: (s.start_time, s.sequence_id))
        return [_conversation(call.attributes) for call in deduplicate(calls)]


def _conversation(a: Mapping[str, Any]) -> Messages:
    prompt = _indexed_messages(a, "gen_ai.prompt") or _prompt_messages(a)
    answer = _indexed_messages(a, "gen_ai.completion")[:1] or _output_messages(a)
    for message in answer:
        message.pop("finish_reason", None)  # a field of the choice, not of the message
    found: Messages = {"messages": prompt + answer}
    if tools := _json_attribute(a, semconv.TOOL_DEFINITIONS):
        found["tools"] = tools
    return found


def _indexed_messages(a: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the messages of attributes ``<prefix>.<n>.<field>``, with nested tool calls."""
    rows: dict[int, dict[str, Any]] = {}
    tools: dict[tuple[int, int], dict[str, Any]] = {}
    form = re.compile(rf"{re.escape(prefix)}\.(\d{{1,6}})\.(?:tool_calls\.(\d{{1,6}})\.)?(\w+)")
    for key, value in a.items():
        if not (found := form.fullmatch(key)):
            continue
        n, tool, field = int(found[1]), found[2], found[3]
        row = rows.setdefault(n, {})
        if tool is None:
            row[field] = value
        else:
            tools.setdefault((n, int(tool)), {})[field] = value
    for (n, _), tool_call in sorted(tools.items()):
        rows[n].setdefault("tool_calls", []).append(_tool_call(tool_call))
        rows[n].setdefault("content", None)
    return [rows[n] for n in sorted(rows)]


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call.get("name", ""), "arguments": call.get("arguments", "")}
    return {"id": call.get("id", ""), "type": "function", "function": function}


def _prompt_messages(a: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the prompt of a span that only the wire layer made, as it was sent."""
    given = _json_attribute(a, semconv.INPUT_MESSAGES) or []
    return given if isinstance(given, list) else [{"role": "user", "content": given}]


def _output_messages(a: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    given = _json_attribute(a, semconv.OUTPUT_MESSAGES)
    for message in given if isinstance(given, list) else ():
        if not isinstance(message, dict):
            continue
        listed = message.get("parts")
        parts = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
        texts = [str(p.get("content", "")) for p in parts if p.get("type") == "text"]
        calls = [_tool_call(p) for p in parts if p.get("type") == "tool_call"]
        message = {"role": message.get("role", "assistant"), "content": "".join(texts) if texts else None}
        found.append({**message, "tool_calls": calls} if calls else message)
    return found


def _json_attribute(a: Mapping[str, Any], name: str) -> Any:
    """Return an attribute's JSON value; ``None`` if it is not JSON, as in spans of other libraries."""
    try:
        return json.loads(a[name]) if isinstance(a.get(name), str) else None
    except (ValueError, RecursionError):
        return None
