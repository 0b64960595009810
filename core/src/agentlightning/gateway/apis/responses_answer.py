"""A whole chat answer as an answer of the Responses API.

Invariant: text, function calls and their arguments are the engine's to the letter, in the order in which the
engine said them, so that sent back they are the turn that was sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlightning.gateway.apis.base import call_id, reasoning_of, tokens
from agentlightning.gateway.apis.responses import LOGPROBS, namespaces

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "reasoning": None, "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
    "tools": [], "top_p": None, "user": None,
}  # fmt: skip
"""Fields of a request that its answer repeats, and their defaults."""


def response(asked: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``asked`` from the first choice of ``chat``."""
    choice = chat["choices"][0]
    reason = _INCOMPLETE.get(str(choice.get("finish_reason")))
    status = "incomplete" if reason else "completed"
    return {
        "id": chat["id"],
        "object": "response",
        "created_at": chat.get("created") or 0,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": chat.get("model") or asked.get("model", ""),
        "output": _items(asked, chat, status),
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": _usage(chat.get("usage")),
        **{name: default if asked.get(name) is None else asked[name] for name, default in _ECHOED.items()},
        **tokens(chat),
    }


def _items(asked: Mapping[str, Any], chat: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
    """Reasoning, text, function calls; the last one bears the answer's status, those before are complete."""
    message, tag = chat["choices"][0]["message"], chat["id"]
    items: list[dict[str, Any]] = []
    if thought := reasoning_of(message):
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"id": f"rs_{tag}", "type": "reasoning", "summary": [], "content": content})
    calls = message.get("tool_calls") or ()
    if message.get("content") or message.get("refusal") or not calls:
        content = _contents(asked, chat)
        items.append({"id": f"msg_{tag}", "type": "message", "role": "assistant", "content": content})
    groups = namespaces(asked)
    for place, call in enumerate(calls):
        function = call["function"]
        item = {
            "id": f"fc_{tag}_{place}",
            "type": "function_call",
            "call_id": call_id(call, tag, place),
            "name": function["name"],
            "arguments": function.get("arguments") or "",
        }
        if function["name"] in groups:
            item["namespace"], item["name"] = groups[function["name"]]
        items.append(item)
    return [{**item, "status": "completed"} for item in items[:-1]] + [{**items[-1], "status": status}]


def _contents(asked: Mapping[str, Any], chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    choice = chat["choices"][0]
    message = choice["message"]
    said = LOGPROBS in (asked.get("include") or ()) and (choice.get("logprobs") or {}).get("content")
    part = {
        "type": "output_text",
        "text": message.get("content") or "",
        "annotations": [],
        "logprobs": said or [],
    }
    refusal = message.get("refusal")
    if not refusal:
        return [part]
    return [*([part] if message.get("content") else []), {"type": "refusal", "refusal": refusal}]


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + completion,
    }
