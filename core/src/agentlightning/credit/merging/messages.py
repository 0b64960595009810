"""Compare chat messages, to find the earlier call that a request continues.

Token ids decide which calls merge. Messages show which calls *should* have merged, so that a failure can be
named. Two messages are equal if role, text and tool calls are equal; names, ids and refusals that
frameworks add do not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentlightning.types import Call
from agentlightning.types.record import tool_calls_of

THINK_END = "</think>"


class Message(NamedTuple):
    """The compared parts of a chat message."""

    role: str
    text: str
    tools: tuple[tuple[str, str], ...]
    """(name, arguments) of each tool call."""


def messages(call: Call, known: dict[int, Message] | None = None) -> list[Message]:
    """Return the request's messages; none for ``/v1/completions``. ``known``: messages that were read before,
    by identity; calls that were read from a store share them.
    """
    found = (call.request or {}).get("messages")
    if not isinstance(found, list):
        return []
    known = {} if known is None else known
    for item in found:
        if id(item) not in known and isinstance(item, Mapping):
            known[id(item)] = _message(item)
    return [known[id(item)] for item in found if id(item) in known]


def answer(call: Call) -> Mapping[str, Any]:
    """Return the call's answer as it was recorded: a message, of the API of completions its text; empty
    without an answer.
    """
    return call.response or {}


def reply(call: Call) -> Message | None:
    """Return the call's answer as a message; ``None`` if it has no content."""
    said = answer(call)
    given = any(said.get(name) for name in ("content", "text", "tool_calls"))
    return _message({"role": "assistant", **said}) if given else None


def has_reasoning(call: Call) -> bool:
    """Whether the answer has a reasoning part, inline (``</think>``) or in a field of its own."""
    said = answer(call)
    split = any(said.get(name) for name in ("reasoning_content", "reasoning"))
    return split or THINK_END in _text(said.get("content") or said.get("text"))


def without_reasoning(message: Message) -> Message:
    """Return the message as a template renders it in later turns: only the text after the reasoning."""
    return message._replace(text=message.text.rsplit(THINK_END, 1)[-1].strip())


def _message(item: Mapping[str, Any]) -> Message:
    tools = tuple(map(_tool, tool_calls_of(item)))
    return Message(str(item.get("role", "")), _text(item.get("content") or item.get("text")), tools)


def _text(content: Any) -> str:
    """Text of a content: a string, a list of parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_part, content))
    return _json(content)


def _part(part: Any) -> str:
    plain = isinstance(part, Mapping) and part.get("type") in (None, "text")
    return str(part.get("text", "")) if plain else _json(part)


def _tool(tool: Mapping[str, Any]) -> tuple[str, str]:
    function = tool.get("function")
    function = function if isinstance(function, Mapping) else tool
    arguments = function.get("arguments", "")
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else _json(arguments)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
