"""OpenAI's Responses API: a stateless subset.

A request's items become messages: a model's message and the function calls after it are one assistant turn,
as the engine sampled it. Fields that need memory between requests, tools that run at the vendor's, and input
other than text are refused. Invariants: text, function calls and their arguments of an answer are the
engine's, unchanged and in its order, so that the turn sent back is the one that was sampled; what the SDK
accumulates from the events is the answer. Source: OpenAI API reference, Responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from agentlightning.gateway.apis.base import (
    PASSED_THROUGH,
    TOKEN_FIELDS,
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
    tokens,
    unsupported,
)
from agentlightning.gateway.apis.sse import KEEP_ALIVE, pieces, typed_event
from agentlightning.gateway.errors import error_body
from agentlightning.gateway.upstream.answer import DECODE_ERRORS, parse_error

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
        kind = kind_of(item, at, "message")
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


# ----------------------------------------------------------------------------------------------------- answer
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
        "output": _output_items(asked, chat, status),
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": _usage(chat.get("usage")),
        **{name: default if asked.get(name) is None else asked[name] for name, default in _ECHOED.items()},
        **tokens(chat),
    }


def _output_items(asked: Mapping[str, Any], chat: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
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


# ----------------------------------------------------------------------------------------------------- stream
def response_events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """From ``response.created`` to ``response.completed`` or ``response.incomplete``, numbered."""
    for number, event in enumerate(_event_dicts(answer)):
        yield typed_event({**event, "sequence_number": number})


def _event_dicts(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {name: value for name, value in answer.items() if name not in TOKEN_FIELDS}
    begun |= {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(answer["output"]):
        yield from _item_events(item, {"output_index": place})
    yield {"type": f"response.{answer['status']}", "response": answer}


def _item_events(item: Mapping[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whose = {**at, "item_id": item["id"]}
    calls = item["type"] == "function_call"
    empty: dict[str, Any] = {"arguments": ""} if calls else {"content": []}
    yield {"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress", **empty}}
    if calls:
        for piece in pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **whose, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **whose, **done}
    else:
        for place, part in enumerate(item["content"]):
            yield from _part_events(part, {**whose, "content_index": place})
    yield {"type": "response.output_item.done", **at, "item": item}


_PART_FIELDS = {
    "output_text": ("text", "response.output_text"),
    "reasoning_text": ("text", "response.reasoning_text"),
    "refusal": ("refusal", "response.refusal"),
}


def _part_events(part: Mapping[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    field, name = _PART_FIELDS[part["type"]]
    more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, field: "", **more}}
    for piece in pieces(part[field]):
        yield {"type": f"{name}.delta", **at, "delta": piece, **more}
    more = {"logprobs": part["logprobs"]} if more else {}
    yield {"type": f"{name}.done", **at, field: part[field], **more}
    yield {"type": "response.content_part.done", **at, "part": part}


class Responses(TranslatedApi):
    """``POST /v1/responses``. Its errors are those of the chat API."""

    name = "responses"
    keep_alive = KEEP_ALIVE

    def chat_body(self, body: dict[str, Any], arguments: ToolArguments) -> dict[str, Any]:
        """The chat body. Arguments come back as they were written, so none is looked up."""
        return chat_body(body)

    def answer(self, body: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A ``response``."""
        return response(body, chat)

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of its stream."""
        return response_events(answer)

    def error(self, status: int, raw: bytes) -> bytes:
        """The engine's error where it has OpenAI's shape, else its message in that shape."""
        try:
            same_shape = isinstance(msgspec.json.decode(raw)["error"], dict)
        except (*DECODE_ERRORS, LookupError, TypeError):
            same_shape = False
        info = parse_error(status, raw)
        return raw if same_shape else error_body(status, info.code, info.message)

    def error_event(self, status: int, raw: bytes) -> bytes:
        """An ``error`` event; its field ``error`` makes the SDK raise."""
        error = msgspec.json.decode(raw)["error"]
        head = {"type": "error", "code": error["code"], "message": error["message"], "param": None}
        return typed_event({**head, "error": error, "sequence_number": 0})


RESPONSES: Final = Responses()
