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

import agentlightning.gateway.apis.checks as checks
from agentlightning.gateway.apis.base import (
    TOKEN_FIELDS,
    ToolArguments,
    TranslatedApi,
    call_id,
    reasoning_of,
    tokens,
)
from agentlightning.gateway.apis.checks import listed, malformed, mapping, text, unsupported
from agentlightning.gateway.apis.sse import pieces, typed_event
from agentlightning.gateway.errors import error_body
from agentlightning.gateway.upstream.answer import DECODE_ERRORS, parse_error

TRANSLATED = frozenset({
    "include", "input", "instructions", "max_output_tokens", "model", "parallel_tool_calls",
    "reasoning", "store", "stream", "temperature", "text", "tool_choice", "tools", "top_logprobs",
    "top_p", "truncation",
})  # fmt: skip
"""Fields that have a meaning for the call."""
IGNORED = frozenset({
    "client_metadata", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "user",
})  # fmt: skip
"""Fields that change no token: bookkeeping, caching, billing."""
_WHOLE = "nothing is stored; send the whole conversation as input"
REFUSED = {
    "background": "wait for the answer, or stream it",
    "context_management": "set over_length: truncate on the policy's route",
    "conversation": _WHOLE,
    "previous_response_id": _WHOLE,
    "prompt": "send instructions and input",
}
"""Fields refused, and what to do instead."""
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = {LOGPROBS, "reasoning.encrypted_content"}
_TEXTS = {"input_text", "output_text", "text", "refusal"}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "reasoning": None, "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
    "tools": [], "top_p": None, "user": None,
}  # fmt: skip
"""Fields of a request that its answer repeats, and their defaults."""
_PART_FIELDS = {"output_text": "text", "reasoning_text": "text", "refusal": "refusal"}
Item = Mapping[str, Any]


class Responses(TranslatedApi):
    """``POST /v1/responses``. Its errors are those of the chat API."""

    name = "responses"

    def chat_body(self, body: dict[str, Any], arguments: ToolArguments) -> dict[str, Any]:
        """The chat body of the same request. Arguments of tool calls come as text, so none is looked up."""
        checks.check_fields(body, TRANSLATED | IGNORED, REFUSED)
        _check_values(body)
        chat: dict[str, Any] = {"model": body.get("model", ""), "messages": _messages(body)}
        if tools := list(_tools(body)):
            chat["tools"] = tools
        if (choice := body.get("tool_choice")) is not None:
            chat["tool_choice"] = _tool_choice(choice)
        form = (body.get("text") or {}).get("format")
        if form and (response_format := checks.response_format(form, "text.format")):
            chat["response_format"] = response_format
        if (limit := body.get("max_output_tokens")) is not None:
            chat["max_completion_tokens"] = limit
        chat |= checks.copied(body, "temperature", "top_p", "parallel_tool_calls", "top_logprobs")
        if LOGPROBS in listed(body.get("include"), "include") or "top_logprobs" in chat:
            chat["logprobs"] = True
        return chat

    def answer(self, body: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A ``response`` from the first choice of ``chat``."""
        reason = _INCOMPLETE.get(str(chat["choices"][0].get("finish_reason")))
        status = "incomplete" if reason else "completed"
        return {
            "id": chat["id"],
            "object": "response",
            "created_at": chat.get("created") or 0,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": chat.get("model") or body.get("model", ""),
            "output": _output(body, chat, status),
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": _usage(chat.get("usage")),
            **{name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()},
            **tokens(chat),
        }

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """From ``response.created`` to ``response.completed`` or ``response.incomplete``, numbered."""
        for number, event in enumerate(_events(answer)):
            yield typed_event({**event, "sequence_number": number})

    def error(self, status: int, raw: bytes) -> bytes:
        """The engine's error where it has OpenAI's shape, else its message in that shape."""
        try:
            same_shape = isinstance(msgspec.json.decode(raw)["error"], dict)
        except (*DECODE_ERRORS, LookupError, TypeError):
            same_shape = False
        return raw if same_shape else error_body(status, *parse_error(status, raw))

    def error_event(self, status: int, raw: bytes) -> bytes:
        """An ``error`` event; its field ``error`` makes the SDK raise."""
        error = msgspec.json.decode(raw)["error"]
        head = {"type": "error", "code": error["code"], "message": error["message"], "param": None}
        return typed_event({**head, "error": error, "sequence_number": 0})


RESPONSES: Final = Responses()


def _check_values(body: Mapping[str, Any]) -> None:
    """Refuse values that the API has and the gateway does not serve."""
    if body.get("store"):
        raise unsupported("store=true", f"set store=false: {_WHOLE}")
    if (truncation := body.get("truncation")) not in (None, "disabled"):
        raise unsupported(f"truncation={truncation!r}", "set over_length: truncate on the policy's route")
    for name in listed(body.get("include"), "include"):
        if text(name, "include") not in _INCLUDED:
            raise unsupported(f"include of {name!r}", f"only {', '.join(sorted(_INCLUDED))} can be included")
    for name in ("text", "reasoning"):
        mapping(body.get(name) or {}, name)


# ------------------------------------------------------------------------------------------ request: messages
def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if body.get("instructions"):
        out.append({"role": "system", "content": text(body["instructions"], "instructions")})
    items = body.get("input")
    if isinstance(items, str):
        return [*out, {"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise malformed("input", "a text or a list of items")
    for index, item in enumerate(items):
        path = f"input[{index}]"
        kind = checks.type_of(item, path, "message")
        if (add := _ITEMS.get(str(kind))) is None:
            raise unsupported(f"{path} of type {kind!r}", f"items may be {', '.join(_ITEMS)}")
        add(out, item, path)
    return out


def _message(out: list[dict[str, Any]], item: Item, path: str) -> None:
    if (role := _ROLES.get(str(item.get("role")))) is None:
        raise malformed(f"{path}.role", f"one of {', '.join(_ROLES)}")
    content = checks.joined(item.get("content"), f"{path}.content", _TEXTS)
    last = out[-1] if out else {}
    only_reasoning = (
        last.get("content", "") is None and "tool_calls" not in last and "reasoning_content" in last
    )
    if role == "assistant" and only_reasoning:
        last["content"] = content
    else:
        out.append({"role": role, "content": content})


def _reasoning(out: list[dict[str, Any]], item: Item, path: str) -> None:
    """Open an assistant turn with its reasoning. A vendor's encrypted reasoning has no text to read."""
    if thought := checks.joined(item.get("content"), f"{path}.content", {"reasoning_text"}):
        out.append({"role": "assistant", "content": None, "reasoning_content": thought})


def _function_call(out: list[dict[str, Any]], item: Item, path: str) -> None:
    name = text(item.get("name"), f"{path}.name")
    if namespace := item.get("namespace"):
        name = _full_name(str(namespace), name)
    call = {
        "id": text(item.get("call_id"), f"{path}.call_id"),
        "type": "function",
        "function": {"name": name, "arguments": text(item.get("arguments"), f"{path}.arguments")},
    }
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": None})
    out[-1].setdefault("tool_calls", []).append(call)


def _function_call_output(out: list[dict[str, Any]], item: Item, path: str) -> None:
    content = checks.joined(item.get("output"), f"{path}.output", _TEXTS)
    call = text(item.get("call_id"), f"{path}.call_id")
    out.append({"role": "tool", "tool_call_id": call, "content": content})


_ITEMS = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}


# --------------------------------------------------------------------------------------------- request: tools
def _tools(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, tool in enumerate(listed(body.get("tools"), "tools")):
        path = f"tools[{index}]"
        if mapping(tool, path).get("type") == "namespace":
            namespace = text(tool.get("name"), f"{path}.name")
            for inner, one in enumerate(listed(tool.get("tools"), f"{path}.tools")):
                yield _tool(one, f"{path}.tools[{inner}]", namespace)
        else:
            yield _tool(tool, path)


def _tool(tool: Any, path: str, namespace: str | None = None) -> dict[str, Any]:
    if (kind := mapping(tool, path).get("type")) != "function":
        message = "offer function tools only; tools that run at the vendor's must be off"
        raise unsupported(f"{path} of type {kind!r}", message)
    name = text(tool.get("name"), f"{path}.name")
    name = _full_name(namespace, name) if namespace else name
    return checks.function(name, tool.get("description"), tool.get("parameters"), tool.get("strict"), path)


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if (kind := mapping(choice, "tool_choice").get("type")) != "function":
        raise unsupported(f"tool_choice of type {kind!r}", "use auto, none, required or one function")
    return {"type": "function", "function": {"name": text(choice.get("name"), "tool_choice.name")}}


def _full_name(namespace: str, name: str) -> str:
    """The name by which the engine knows a function of a namespace."""
    return f"{namespace}__{name}"


def _namespaces(body: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The name by which the engine knows a function → its namespace and its name there."""
    return {
        _full_name(group["name"], tool["name"]): (group["name"], tool["name"])
        for group in body.get("tools") or ()
        if group.get("type") == "namespace"
        for tool in group.get("tools") or ()
    }


# ----------------------------------------------------------------------------------------------------- answer
def _output(body: Mapping[str, Any], chat: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
    """Reasoning, text, function calls. The last item has the answer's status, the others are complete."""
    message, answer_id = chat["choices"][0]["message"], chat["id"]
    items: list[dict[str, Any]] = []
    if thought := reasoning_of(message):
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"id": f"rs_{answer_id}", "type": "reasoning", "summary": [], "content": content})
    calls = message.get("tool_calls") or ()
    if message.get("content") or message.get("refusal") or not calls:
        content = _contents(body, chat["choices"][0])
        items.append({"id": f"msg_{answer_id}", "type": "message", "role": "assistant", "content": content})
    namespaces = _namespaces(body)
    for index, call in enumerate(calls):
        function = call["function"]
        item = {
            "id": f"fc_{answer_id}_{index}",
            "type": "function_call",
            "call_id": call_id(call, answer_id, index),
            "name": function["name"],
            "arguments": function.get("arguments") or "",
        }
        if function["name"] in namespaces:
            item["namespace"], item["name"] = namespaces[function["name"]]
        items.append(item)
    return [{**item, "status": "completed"} for item in items[:-1]] + [{**items[-1], "status": status}]


def _contents(body: Mapping[str, Any], choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    message = choice["message"]
    wanted = LOGPROBS in (body.get("include") or ())
    logprobs = wanted and (choice.get("logprobs") or {}).get("content")
    content, refusal = message.get("content") or "", message.get("refusal")
    part = {"type": "output_text", "text": content, "annotations": [], "logprobs": logprobs or []}
    if not refusal:
        return [part]
    return [*([part] if content else []), {"type": "refusal", "refusal": refusal}]


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
def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {name: value for name, value in answer.items() if name not in TOKEN_FIELDS}
    begun |= {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(answer["output"]):
        yield from _item_events(item, {"output_index": index})
    yield {"type": f"response.{answer['status']}", "response": answer}


def _item_events(item: Item, at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    of_item = {**at, "item_id": item["id"]}
    is_call = item["type"] == "function_call"
    empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
    yield {"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress", **empty}}
    if is_call:
        for piece in pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **of_item, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **of_item, **done}
    else:
        for index, part in enumerate(item["content"]):
            yield from _part_events(part, {**of_item, "content_index": index})
    yield {"type": "response.output_item.done", **at, "item": item}


def _part_events(part: Mapping[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    field, name = _PART_FIELDS[part["type"]], f"response.{part['type']}"
    more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, field: "", **more}}
    for piece in pieces(part[field]):
        yield {"type": f"{name}.delta", **at, "delta": piece, **more}
    more = {"logprobs": part["logprobs"]} if more else {}
    yield {"type": f"{name}.done", **at, field: part[field], **more}
    yield {"type": "response.content_part.done", **at, "part": part}
