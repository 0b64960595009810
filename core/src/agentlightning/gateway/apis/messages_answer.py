"""A whole chat answer as a message of Anthropic's API, and errors as this API says them.

Invariant: text and tool calls are the engine's, in its order; a tool's input is its arguments, parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.gateway.apis.base import call_id, reasoning_of, tokens
from agentlightning.gateway.apis.messages import tool_input
from agentlightning.gateway.errors import TOO_LONG
from agentlightning.gateway.upstream.answer import parse_error

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def message(asked: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``asked`` from the first choice of ``chat``."""
    choice = chat["choices"][0]
    reason = _REASONS.get(str(choice.get("finish_reason")), "end_turn")
    if reason == "end_turn" and choice["message"].get("tool_calls"):
        reason = "tool_use"  # engines say "stop" of a tool that was forced
    stopped = choice.get("stop_reason")
    stopped = stopped if reason == "end_turn" and isinstance(stopped, str) else None
    usage = chat.get("usage") or {}
    return {
        "id": chat["id"],
        "type": "message",
        "role": "assistant",
        "model": chat.get("model") or asked.get("model", ""),
        "content": _blocks(choice["message"], chat["id"]),
        "stop_reason": "stop_sequence" if stopped else reason,
        "stop_sequence": stopped,
        "usage": {
            "input_tokens": usage.get("prompt_tokens") or 0,
            "output_tokens": usage.get("completion_tokens") or 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
        **tokens(chat),
    }


def _blocks(said: Mapping[str, Any], tag: str) -> list[dict[str, Any]]:
    """Thinking, text, tool uses."""
    blocks: list[dict[str, Any]] = []
    if thought := reasoning_of(said):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    calls = said.get("tool_calls") or ()
    content = said.get("content") or said.get("refusal")
    if content or not calls:
        blocks.append({"type": "text", "text": content or "", "citations": None})
    for place, call in enumerate(calls):
        called = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call_id(call, tag, place),
                "name": called["name"],
                "input": tool_input(called.get("arguments") or ""),
            }
        )
    return blocks


def message_error(status: int, raw: bytes) -> bytes:
    """An OpenAI error body as this API says it; ``code`` stays, and too long is called as agents know it."""
    info = parse_error(status, raw)
    kind = _KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    said = f"prompt is too long: {info.message}" if info.code == TOO_LONG else info.message
    return msgspec.json.encode(
        {"type": "error", "error": {"type": kind, "message": said, "code": info.code}, "request_id": None}
    )
