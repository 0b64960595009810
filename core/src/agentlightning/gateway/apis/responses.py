"""Requests of OpenAI's Responses API as chat bodies: a stateless subset.

Items become messages: a model's message and the function calls after it are one assistant turn, as the
engine said it. What needs a memory between requests, tools that run at the vendor's, and anything but text is
refused. Source: OpenAI API reference, Responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlightning.gateway.apis.base import (
    PASSED_THROUGH,
    check_fields,
    failure_kind,
    function,
    joined,
    json_form,
    listed,
    malformed,
    mapping,
    text,
    unsupported,
)

TRANSLATED = {
    "include", "input", "instructions", "max_output_tokens", "model", "parallel_tool_calls", "reasoning",
    "store", "stream", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
}  # fmt: skip
"""Fields that say something of the call."""
IGNORED = {
    "client_metadata", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "user",
}  # fmt: skip
"""Fields that change no token: bookkeeping, caching, billing."""
_WHOLE = "nothing is stored; send the whole conversation as input"
REFUSED = {
    "background": "wait for the answer, or stream it",
    "context_management": "set over_length: truncate on the policy's route",
    "conversation": _WHOLE,
    "previous_response_id": _WHOLE,
    "prompt": "send instructions and input",
}
"""Fields refused, and what to do."""
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = {LOGPROBS, "reasoning.encrypted_content"}
_TEXTS = {"input_text", "output_text", "text", "refusal"}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_SEPARATOR = "__"


def chat_body(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The chat body that asks the same."""
    check_fields(asked, TRANSLATED | IGNORED, REFUSED)
    _refuse(asked)
    chat: dict[str, Any] = {"model": asked.get("model", ""), "messages": _messages(asked)}
    if tools := _tools(asked):
        chat["tools"] = tools
    if (choice := asked.get("tool_choice")) is not None:
        chat["tool_choice"] = _choice(choice)
    form = (asked.get("text") or {}).get("format")
    if form and (response_format := json_form(form, "text.format")):
        chat["response_format"] = response_format
    if (limit := asked.get("max_output_tokens")) is not None:
        chat["max_completion_tokens"] = limit
    for name in ("temperature", "top_p", "parallel_tool_calls", "top_logprobs", *sorted(PASSED_THROUGH)):
        if asked.get(name) is not None:
            chat[name] = asked[name]
    if LOGPROBS in listed(asked.get("include"), "include") or "top_logprobs" in chat:
        chat["logprobs"] = True
    if asked.get("stream"):
        chat["stream"] = True
    return chat


def namespaces(asked: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Name of a function towards the engine → its namespace and its name there."""
    groups = [
        tool for tool in asked.get("tools") or () if tool.get("type") == "namespace" and tool.get("tools")
    ]
    return {
        _full(group["name"], tool["name"]): (group["name"], tool["name"])
        for group in groups
        for tool in group.get("tools") or ()
    }


def _refuse(asked: Mapping[str, Any]) -> None:
    """Values that the API has and the gateway has not."""
    if asked.get("store"):
        raise unsupported("store=true", f"set store=false: {_WHOLE}")
    if asked.get("truncation") not in (None, "disabled"):
        raise unsupported(
            f"truncation={asked['truncation']!r}", "set over_length: truncate on the policy's route"
        )
    for name in listed(asked.get("include"), "include"):
        if text(name, "include") not in _INCLUDED:
            raise unsupported(f"include of {name!r}", f"only {', '.join(sorted(_INCLUDED))} can be included")
    for name in ("text", "reasoning"):
        mapping(asked.get(name) or {}, name)


def _full(namespace: str, name: str) -> str:
    return f"{namespace}{_SEPARATOR}{name}"


# ------------------------------------------------------------------------------------------------- messages
def _messages(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if asked.get("instructions"):
        out.append({"role": "system", "content": text(asked["instructions"], "instructions")})
    given = asked.get("input")
    if isinstance(given, str):
        return [*out, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise malformed("input", "a text or a list of items")
    for place, item in enumerate(given):
        at = f"input[{place}]"
        kind = failure_kind(item, at, "message")
        if (add := _ITEMS.get(str(kind))) is None:
            raise unsupported(f"{at} of type {kind!r}", f"items may be {', '.join(_ITEMS)}")
        add(out, item, at)
    return out


def _message(out: list[dict[str, Any]], item: Mapping[str, Any], at: str) -> None:
    if (role := _ROLES.get(str(item.get("role")))) is None:
        raise malformed(f"{at}.role", f"one of {', '.join(_ROLES)}")
    content = joined(item.get("content"), f"{at}.content", _TEXTS)
    last = out[-1] if out else {}
    if role == "assistant" and _only_reasoning(last):
        last["content"] = content
    else:
        out.append({"role": role, "content": content})


def _reasoning(out: list[dict[str, Any]], item: Mapping[str, Any], at: str) -> None:
    """Reasoning opens an assistant turn. A vendor's encrypted one has no text that we could read."""
    if thought := joined(item.get("content"), f"{at}.content", {"reasoning_text"}):
        out.append({"role": "assistant", "content": None, "reasoning_content": thought})


def _function_call(out: list[dict[str, Any]], item: Mapping[str, Any], at: str) -> None:
    name = text(item.get("name"), f"{at}.name")
    if namespace := item.get("namespace"):
        name = _full(str(namespace), name)
    call = {
        "id": text(item.get("call_id"), f"{at}.call_id"),
        "type": "function",
        "function": {"name": name, "arguments": text(item.get("arguments"), f"{at}.arguments")},
    }
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": None})
    out[-1].setdefault("tool_calls", []).append(call)


def _function_call_output(out: list[dict[str, Any]], item: Mapping[str, Any], at: str) -> None:
    content = joined(item.get("output"), f"{at}.output", _TEXTS)
    out.append(
        {"role": "tool", "tool_call_id": text(item.get("call_id"), f"{at}.call_id"), "content": content}
    )


_ITEMS = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}


def _only_reasoning(message: Mapping[str, Any]) -> bool:
    return (
        message.get("content", "") is None and "tool_calls" not in message and "reasoning_content" in message
    )


# ---------------------------------------------------------------------------------------------------- tools
def _tools(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    out = []
    for place, tool in enumerate(listed(asked.get("tools"), "tools")):
        at = f"tools[{place}]"
        if mapping(tool, at).get("type") == "namespace":
            group = text(tool.get("name"), f"{at}.name")
            for inner, one in enumerate(listed(tool.get("tools"), f"{at}.tools")):
                out.append(_tool(one, f"{at}.tools[{inner}]", group))
        else:
            out.append(_tool(tool, at))
    return out


def _tool(tool: Any, at: str, group: str | None = None) -> dict[str, Any]:
    if (kind := mapping(tool, at).get("type")) != "function":
        raise unsupported(
            f"{at} of type {kind!r}", "offer function tools only; tools that run at the vendor's must be off"
        )
    name = text(tool.get("name"), f"{at}.name")
    return function(
        _full(group, name) if group else name,
        tool.get("description"),
        tool.get("parameters"),
        tool.get("strict"),
        at,
    )


def _choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if mapping(choice, "tool_choice").get("type") != "function":
        raise unsupported(
            f"tool_choice of type {choice.get('type')!r}", "use auto, none, required or one function"
        )
    return {"type": "function", "function": {"name": text(choice.get("name"), "tool_choice.name")}}
