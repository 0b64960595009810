"""Requests of Anthropic's Messages API as chat bodies: a stateless subset.

Blocks become messages: the text and tool uses of an assistant are one turn; each tool result is a turn of its
own. The API parses the arguments of a tool call, so their text is looked up by the call's id: sent back, the
turn is what the model wrote. Source: Anthropic API reference, Messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.gateway.apis.base import (
    PASSED_THROUGH,
    WrittenArguments,
    check_fields,
    failure_kind,
    function,
    joined,
    json_form,
    listed,
    malformed,
    mapping,
    text,
    text_of,
    unsupported,
)

TRANSLATED = {
    "context_management", "max_tokens", "messages", "model", "output_config", "output_format",
    "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_p",
}  # fmt: skip
"""Fields that say something of the call."""
IGNORED = {"cache_control", "inference_geo", "metadata", "service_tier", "speed"}
"""Fields that change no token: bookkeeping, caching, billing."""
REFUSED = {
    "container": "run code in a tool of your own",
    "mcp_servers": "connect to MCP servers in the agent, and offer their tools as function tools",
}
"""Fields refused, and what to do."""
UNREADABLE = "unreadable_arguments"
"""Key of a tool's input whose arguments, as the model wrote them, are no JSON object."""
_TEXTS = {"text"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NO_EDIT = {"type": "clear_thinking_20251015", "keep": "all"}


def chat_body(asked: Mapping[str, Any], said: WrittenArguments) -> dict[str, Any]:
    """The chat body that asks the same."""
    check_fields(asked, TRANSLATED | IGNORED, REFUSED)
    _refuse(asked)
    limit = asked.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise malformed("max_tokens", "a number of tokens, at least 1")
    chat: dict[str, Any] = {
        "model": asked.get("model", ""),
        "messages": _messages(asked, said),
        "max_tokens": limit,
    }
    if tools := [_tool(tool, f"tools[{i}]") for i, tool in enumerate(listed(asked.get("tools"), "tools"))]:
        chat["tools"] = tools
    if asked.get("tool_choice") is not None:
        chat |= _choice(mapping(asked["tool_choice"], "tool_choice"))
    if form := _form(asked):
        chat["response_format"] = form
    for name in ("temperature", "top_p", *sorted(PASSED_THROUGH)):
        if asked.get(name) is not None:
            chat[name] = asked[name]
    if sequences := listed(asked.get("stop_sequences"), "stop_sequences"):
        more = chat.get("stop") or []
        more = [more] if isinstance(more, str) else listed(more, "stop")
        chat["stop"] = [*sequences, *(one for one in more if one not in sequences)]
    if asked.get("stream"):
        chat["stream"] = True
    return chat


def tool_input(arguments: str) -> dict[str, Any]:
    """Arguments as a tool's input, which must be an object that JSON can say."""
    try:
        value = msgspec.json.decode(arguments or "{}")
        msgspec.json.encode(value)
    except (ValueError, RecursionError, OverflowError):
        value = None
    return value if isinstance(value, dict) else {UNREADABLE: arguments}


def _refuse(asked: Mapping[str, Any]) -> None:
    """Values that the API has and the gateway has not."""
    thinking = failure_kind(asked.get("thinking") or {}, "thinking")
    if thinking not in (None, "disabled", "adaptive"):
        raise unsupported(
            f"thinking of type {thinking!r}",
            "the engine keeps no thinking budget: leave it out, or say adaptive; the model thinks as its "
            "chat template lets it",
        )
    edits = mapping(asked.get("context_management") or {}, "context_management").get("edits")
    for edit in listed(edits, "context_management.edits"):
        if edit != _NO_EDIT:
            raise unsupported(
                "an edit of context_management", "set over_length: truncate on the policy's route"
            )
    check_fields(
        mapping(asked.get("output_config") or {}, "output_config"), {"effort", "format"}, {}, "output_config."
    )


def _form(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    form = (asked.get("output_config") or {}).get("format") or asked.get("output_format")
    return json_form(form, "output_config.format") if form else None


# ------------------------------------------------------------------------------------------------- messages
def _messages(asked: Mapping[str, Any], said: WrittenArguments) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if system := joined(asked.get("system"), "system", _TEXTS):
        out.append({"role": "system", "content": system})
    turns = listed(asked.get("messages"), "messages")
    if not turns:
        raise malformed("messages", "a list of at least one message")
    for place, turn in enumerate(turns):
        at = f"messages[{place}]"
        role, content = mapping(turn, at).get("role"), turn.get("content")
        if role == "assistant":
            out.append(_assistant(content, f"{at}.content", said))
        elif role == "user":
            out += _user(content, f"{at}.content")
        elif role == "system":
            out.append({"role": "system", "content": joined(content, f"{at}.content", _TEXTS)})
        else:
            raise malformed(f"{at}.role", "user, assistant or system")
    if out[-1]["role"] == "assistant":
        raise unsupported(
            "an answer that is begun (a last message of the assistant)", "end with the user's turn"
        )
    return out


def _assistant(content: Any, at: str, said: WrittenArguments) -> dict[str, Any]:
    """One turn: what it thought, said and called."""
    if content is None or isinstance(content, str):
        return {"role": "assistant", "content": content or ""}
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(listed(content, at)):
        where = f"{at}[{place}]"
        kind = failure_kind(block, where)
        if kind == "tool_use":
            calls.append(_call(block, where, said))
        elif kind == "thinking":
            thoughts.append(text(block.get("thinking"), f"{where}.thinking"))
        else:
            texts.append(text_of(block, where, _TEXTS))
    turn: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if any(thoughts):
        turn["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: Mapping[str, Any], at: str, said: WrittenArguments) -> dict[str, Any]:
    name, given = text(block.get("id"), f"{at}.id"), mapping(block.get("input"), f"{at}.input")
    written = next((one for one in said.get(name, ()) if tool_input(one) == given), None)
    if written is None:
        written = json.dumps(given, ensure_ascii=False)
    called = {"name": text(block.get("name"), f"{at}.name"), "arguments": written}
    return {"id": name, "type": "function", "function": called}


def _user(content: Any, at: str) -> list[dict[str, Any]]:
    """Tool results and what the user says, in their order."""
    if content is None or isinstance(content, str):
        return [{"role": "user", "content": content or ""}]
    out: list[dict[str, Any]] = []
    texts: list[Any] = []
    for place, block in enumerate(listed(content, at)):
        where = f"{at}[{place}]"
        if mapping(block, where).get("type") == "tool_result":
            if texts:
                out.append({"role": "user", "content": "\n".join(texts)})
                texts = []
            result = joined(block.get("content"), f"{where}.content", _TEXTS)
            call = text(block.get("tool_use_id"), f"{where}.tool_use_id")
            out.append({"role": "tool", "tool_call_id": call, "content": result})
        else:
            texts.append(text_of(block, where, _TEXTS))
    if texts or not out:
        out.append({"role": "user", "content": "\n".join(texts)})
    return out


# ---------------------------------------------------------------------------------------------------- tools
def _tool(tool: Any, at: str) -> dict[str, Any]:
    kind = failure_kind(tool, at)
    if kind not in (None, "custom"):
        raise unsupported(
            f"{at} of type {kind!r}",
            "offer tools of your own, with an input_schema; built-in ones must be off",
        )
    schema = mapping(tool.get("input_schema"), f"{at}.input_schema")
    return function(tool.get("name"), tool.get("description"), schema, tool.get("strict"), at)


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = failure_kind(choice, "tool_choice")
    if kind == "tool":
        name = text(choice.get("name"), "tool_choice.name")
        chosen: Any = {"type": "function", "function": {"name": name}}
    elif kind in _CHOICES:
        chosen = _CHOICES[kind]
    else:
        raise malformed("tool_choice.type", "auto, any, tool or none")
    one = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": chosen, **one}
