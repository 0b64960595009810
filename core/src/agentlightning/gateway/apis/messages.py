"""Anthropic's Messages API: a stateless subset.

A request's blocks become messages: the text and tool uses of an assistant are one turn; each tool result is a
turn of its own. This API carries the arguments of a tool call parsed, so their text is looked up by the
call's id: sent back, the turn is what the model wrote. Invariants: text and tool calls of an answer are the
engine's, in its order; what the SDK accumulates from the events is the message. Source: Anthropic API
reference, Messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from agentlightning.gateway.apis.base import (
    PASSED_THROUGH,
    ToolArguments,
    TranslatedApi,
    call_id,
    check_fields,
    function,
    joined,
    json_form,
    kind_of,
    listed,
    malformed,
    mapping,
    reasoning_of,
    text,
    text_of,
    tokens,
    unsupported,
)
from agentlightning.gateway.apis.sse import pieces, typed_event
from agentlightning.gateway.errors import TOO_LONG
from agentlightning.gateway.upstream.answer import parse_error

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


def chat_body(asked: Mapping[str, Any], arguments: ToolArguments) -> dict[str, Any]:
    """The chat body that asks the same."""
    check_fields(asked, TRANSLATED | IGNORED, REFUSED)
    _refuse(asked)
    limit = asked.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise malformed("max_tokens", "a number of tokens, at least 1")
    chat: dict[str, Any] = {
        "model": asked.get("model", ""),
        "messages": _messages(asked, arguments),
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
    thinking = kind_of(asked.get("thinking") or {}, "thinking")
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
def _messages(asked: Mapping[str, Any], arguments: ToolArguments) -> list[dict[str, Any]]:
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
            out.append(_assistant(content, f"{at}.content", arguments))
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


def _assistant(content: Any, at: str, arguments: ToolArguments) -> dict[str, Any]:
    """One turn: what it thought, said and called."""
    if content is None or isinstance(content, str):
        return {"role": "assistant", "content": content or ""}
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(listed(content, at)):
        where = f"{at}[{place}]"
        kind = kind_of(block, where)
        if kind == "tool_use":
            calls.append(_call(block, where, arguments))
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


def _call(block: Mapping[str, Any], at: str, arguments: ToolArguments) -> dict[str, Any]:
    name, given = text(block.get("id"), f"{at}.id"), mapping(block.get("input"), f"{at}.input")
    written = next((one for one in arguments.get(name, ()) if tool_input(one) == given), None)
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
    kind = kind_of(tool, at)
    if kind not in (None, "custom"):
        raise unsupported(
            f"{at} of type {kind!r}",
            "offer tools of your own, with an input_schema; built-in ones must be off",
        )
    schema = mapping(tool.get("input_schema"), f"{at}.input_schema")
    return function(tool.get("name"), tool.get("description"), schema, tool.get("strict"), at)


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = kind_of(choice, "tool_choice")
    if kind == "tool":
        name = text(choice.get("name"), "tool_choice.name")
        chosen: Any = {"type": "function", "function": {"name": name}}
    elif kind in _CHOICES:
        chosen = _CHOICES[kind]
    else:
        raise malformed("tool_choice.type", "auto, any, tool or none")
    one = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": chosen, **one}


# ----------------------------------------------------------------------------------------------------- answer
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERROR_TYPES = {
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
    reason = _STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn")
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


def _blocks(message: Mapping[str, Any], tag: str) -> list[dict[str, Any]]:
    """Thinking, text, tool uses."""
    blocks: list[dict[str, Any]] = []
    if thought := reasoning_of(message):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    calls = message.get("tool_calls") or ()
    content = message.get("content") or message.get("refusal")
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
    kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    said = f"prompt is too long: {info.message}" if info.code == TOO_LONG else info.message
    return msgspec.json.encode(
        {"type": "error", "error": {"type": kind, "message": said, "code": info.code}, "request_id": None}
    )


# ----------------------------------------------------------------------------------------------------- stream
_DELTA_FIELDS = {"text": "text", "thinking": "thinking"}


def message_events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """From ``message_start`` to ``message_stop``."""
    return map(typed_event, _event_dicts(answer))


def _event_dicts(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    usage = answer["usage"]
    begun = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(answer["content"]):
        yield from _block_events(block, index)
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(block: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    if field := _DELTA_FIELDS.get(kind):
        empty: Any = ""
        deltas = [{"type": f"{kind}_delta", field: piece} for piece in pieces(block[field])]
    else:
        field, empty = "input", {}
        written = json.dumps(block["input"], ensure_ascii=False)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(written)]
    yield {"type": "content_block_start", "index": index, "content_block": {**block, field: empty}}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


class Messages(TranslatedApi):
    """``POST /v1/messages``."""

    name = "messages"
    keep_alive = typed_event({"type": "ping"})

    def chat_body(self, body: dict[str, Any], arguments: ToolArguments) -> dict[str, Any]:
        """The chat body, with the arguments of earlier tool calls as the model wrote them."""
        return chat_body(body, arguments)

    def answer(self, body: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A ``message``."""
        return message(body, chat)

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of its stream."""
        return message_events(answer)

    def error(self, status: int, raw: bytes) -> bytes:
        """``{"type": "error", "error": {…}}``."""
        return message_error(status, raw)

    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same as an event."""
        return typed_event(msgspec.json.decode(message_error(status, raw)))


MESSAGES: Final = Messages()
