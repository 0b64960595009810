"""Replay of a whole answer as a stream, for engines whose own streams lose token ids.

Invariant: the chunks, put together again, are the answer: text, tool calls, ids, logprobs, finish reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from agentlightning.gateway.apis.sse import DONE

KEEP_ALIVE = b": keep-alive\n\n"
PIECE = 48
"""Characters of text in one replayed chunk."""


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def replay(raw: bytes, api: str, wants_usage: bool) -> Iterator[bytes]:
    """The events of a whole answer ``raw`` (checked before), the closing ``[DONE]`` included."""
    answer: dict[str, Any] = msgspec.json.decode(raw)
    head: dict[str, Any] = {
        name: answer[name] for name in ("id", "created", "model", "system_fingerprint") if name in answer
    }
    head["object"] = "chat.completion.chunk" if api == "chat" else "text_completion"
    extra = {
        name: answer[name] for name in ("prompt_token_ids", "policy_version") if answer.get(name) is not None
    }
    for choice in answer["choices"]:
        for piece in _pieces(choice, api):
            yield event(msgspec.json.encode({**head, "choices": [piece], **extra}))
            extra = {}
    if wants_usage:
        yield event(msgspec.json.encode({**head, "choices": [], "usage": answer.get("usage")}))
    yield event(DONE)


def _pieces(choice: dict[str, Any], api: str) -> Iterator[dict[str, Any]]:
    """The chunks' choices. Ids and logprobs ride on the first with content, else on the closing one."""
    index = choice.get("index", 0)
    ride = {
        name: choice[name]
        for name in ("token_ids", "prompt_token_ids", "logprobs")
        if choice.get(name) is not None
    }
    bodies: Iterator[dict[str, Any]]
    if api == "chat":
        message = choice["message"]
        yield {
            "index": index,
            "delta": {"role": message.get("role", "assistant"), "content": ""},
            "finish_reason": None,
        }
        bodies = ({"delta": delta} for delta in _deltas(message))
        last: dict[str, Any] = {"delta": {}}
    else:
        bodies = ({"text": text} for text in cut(choice["text"]))
        last = {"text": ""}
    for body in bodies:
        yield {"index": index, **body, "finish_reason": None, **ride}
        ride = {}
    yield {"index": index, **last, "finish_reason": choice.get("finish_reason"), **ride}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The message in pieces: reasoning and other fields first, then text, then tool calls."""
    for name, value in message.items():
        if name in ("role", "content", "tool_calls") or value is None or value in ([], {}, ""):
            continue
        if name.startswith("reasoning") and isinstance(value, str):
            yield from ({name: text} for text in cut(value))
        else:
            yield {name: value}
    content = message.get("content")
    if isinstance(content, str):
        yield from ({"content": text} for text in cut(content))
    for place, tool in enumerate(message.get("tool_calls") or ()):
        function = tool.get("function") or {}
        opening = {"index": place, **tool, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [opening]}
        for text in cut(function.get("arguments") or ""):
            yield {"tool_calls": [{"index": place, "function": {"arguments": text}}]}


def cut(text: str) -> Iterator[str]:
    """A text in the pieces of a replayed stream."""
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))
