"""OpenAI's Responses API, translated to chat completions.

A request's items become messages (:mod:`.items`). A request that refers to an earlier answer or to a
conversation gets the messages of these before its own: it is the chat call that it would be with the whole
conversation sent as input. Tools that run at the vendor's and prompts stored there are refused. Invariant:
what the SDK accumulates from the events is the answer. Source: OpenAI API reference, Responses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import msgspec

import agl_gateway.apis.checks as checks
from agentlightning.gateway.answer import DECODE_ERRORS, parse_error
from agentlightning.gateway.apis import check_limits, pieces
from agentlightning.gateway.attempts import OpenAttempt
from agentlightning.gateway.errors import RequestRefused, error_body
from agentlightning.types import Call
from agl_gateway.apis.checks import listed, malformed, mapping, text, unsupported
from agl_gateway.apis.history import NOTHING, Earlier, History, References, not_found
from agl_gateway.apis.items import (
    ANSWER,
    NAME,
    Item,
    answer_items,
    full_name,
    messages_of,
    referred,
)
from agl_gateway.apis.translated import TOKEN_FIELDS, TranslatedApi, tokens, typed_event

TRANSLATED = frozenset({
    "conversation", "include", "input", "instructions", "max_output_tokens", "model",
    "parallel_tool_calls", "previous_response_id", "reasoning", "store", "stream", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
})  # fmt: skip
"""Fields that have a meaning for the call."""
IGNORED = frozenset({
    "client_metadata", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "user",
})  # fmt: skip
"""Fields that change no token: bookkeeping, caching, billing."""
REFUSED = {
    "background": "wait for the answer, or stream it",
    "context_management": "set over_length: truncate on the policy's route",
    "prompt": "it names a template that is stored at the vendor's; send instructions and input",
}
"""Fields refused, and what to do instead."""
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = {LOGPROBS, "reasoning.encrypted_content"}
_HOSTED = {
    "web_search": "search in a function tool of your own",
    "file_search": "search your files in a function tool of your own",
    "code_interpreter": "run code in a function tool of your own",
    "computer": "operate the computer in a function tool of your own",
    "image_generation": "make images in a function tool of your own",
    "mcp": "connect to the MCP server in the agent, and offer its tools as function tools",
    "local_shell": "run commands in a function tool of your own",
    "shell": "run commands in a function tool of your own",
    "apply_patch": "edit files in a function tool of your own",
    "tool_search": "offer all tools at once",
    "custom": "offer a function tool with one text parameter",
}
"""Kinds of tools that are refused, by the beginning of their type, and what to use instead."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "reasoning": None, "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
    "previous_response_id": None, "tools": [], "top_p": None, "user": None,
}  # fmt: skip
"""Fields of a request that its answer repeats, and their defaults."""
_PART_FIELDS = {"output_text": "text", "reasoning_text": "text", "refusal": "refusal"}


class Responses(TranslatedApi):
    """``POST /v1/responses``. Its errors are those of the chat API."""

    name = NAME
    instead = MappingProxyType(
        {
            "/responses/compact": "no policy writes what the vendor's service returns; send the turns that "
            "you keep, or set over_length: truncate on the policy's route"
        }
    )

    @asynccontextmanager
    async def chat(self, body: dict[str, Any], attempt: OpenAttempt) -> AsyncIterator[dict[str, Any]]:
        """The chat body, after the messages of what the request continues. One call at a time is made in a
        conversation.
        """
        history, names = attempt.part(History), self.references(body)
        with history.alone(names.conversation):
            yield self.chat_body(body, await history.earlier(names))

    def remember(self, attempt: OpenAttempt, call: Call, chat: Mapping[str, Any]) -> None:
        """Keep the answer, its conversation, and the arguments of its tool calls."""
        super().remember(attempt, call, chat)
        attempt.part(History).remember(call, chat)

    def chat_body(self, body: dict[str, Any], earlier: Earlier = NOTHING) -> dict[str, Any]:
        """The chat body of the same request. Arguments of tool calls come as text, so none is looked up."""
        checks.check_fields(body, TRANSLATED | IGNORED, REFUSED)
        _check_values(body)
        chat: dict[str, Any] = {"model": body.get("model", ""), "messages": _messages(body, earlier)}
        if tools := list(_tools(body)):
            chat["tools"] = tools
        if (choice := body.get("tool_choice")) is not None:
            chat["tool_choice"] = _tool_choice(choice)
        form = (body.get("text") or {}).get("format")
        if form and (response_format := checks.response_format(form, "text.format")):
            chat["response_format"] = response_format
        check_limits(body, "max_output_tokens")
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
        conversation = self.references(body).conversation
        return {
            "id": chat["id"],
            "object": "response",
            "created_at": int(chat.get("created") or 0),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": chat.get("model") or body.get("model", ""),
            "output": _output(body, chat, status),
            "conversation": {"id": conversation} if conversation else None,
            "store": body.get("store") is not False,
            "truncation": "disabled",
            "usage": _usage(chat.get("usage")),
            **{name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()},
            **tokens(chat),
        }

    def references(self, body: Mapping[str, Any]) -> References:
        """``previous_response_id`` or ``conversation``, and the ``item_reference`` items of the input."""
        before, conversation = body.get("previous_response_id"), body.get("conversation")
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        if before and conversation:
            message = "previous_response_id and conversation exclude each other; send one of them"
            raise RequestRefused(400, "mutually_exclusive_parameters", message)
        return References(
            answer=text(before, "previous_response_id") if before else None,
            conversation=text(conversation, "conversation") if conversation else None,
            items=referred(body.get("input")),
        )

    def id_of(self, engine_id: str | None, own: str) -> str:
        """Its own: an id that is unique in its attempt, whatever the engine says."""
        return f"{ANSWER}{own}"

    def noted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """``continues``: the answer or conversation that it refers to. ``instructions``: the first message
        is of this request alone. ``stored``: false where no later request may refer to the answer.
        """
        names = self.references(body)
        continues = names.answer or names.conversation
        found: dict[str, Any] = {"continues": continues} if continues else {}
        if body.get("instructions"):
            found["instructions"] = True
        return found if body.get("store") is not False else {**found, "stored": False}

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
    if (truncation := body.get("truncation")) not in (None, "disabled"):
        raise unsupported(f"truncation={truncation!r}", "set over_length: truncate on the policy's route")
    for name in listed(body.get("include"), "include"):
        if text(name, "include") not in _INCLUDED:
            raise unsupported(f"include of {name!r}", f"only {', '.join(sorted(_INCLUDED))} can be included")
    for name in ("text", "reasoning"):
        mapping(body.get(name) or {}, name)


# ------------------------------------------------------------------------------------------ request: messages
def _messages(body: Mapping[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
    """Instructions, the earlier conversation, and the input."""
    out: list[dict[str, Any]] = []
    if body.get("instructions"):
        out.append({"role": "system", "content": text(body["instructions"], "instructions")})
    names = RESPONSES.references(body)
    if earlier.messages is None and (continued := names.answer or names.conversation):
        raise not_found(continued)
    out += earlier.messages or ()
    items = body.get("input")
    if isinstance(items, str):
        return [*out, {"role": "user", "content": items}]
    if not isinstance(items, list) or not (items or earlier.messages):
        raise malformed("input", "a text or a list of items")
    return out + messages_of(items, earlier.items)


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
        instead = next((use for name, use in _HOSTED.items() if str(kind).startswith(name)), "leave it out")
        raise unsupported(f"{path} of type {kind!r}", f"offer function tools only: {instead}")
    name = text(tool.get("name"), f"{path}.name")
    name = full_name(namespace, name) if namespace else name
    return checks.function(name, tool.get("description"), tool.get("parameters"), tool.get("strict"), path)


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if (kind := mapping(choice, "tool_choice").get("type")) != "function":
        raise unsupported(f"tool_choice of type {kind!r}", "use auto, none, required or one function")
    return {"type": "function", "function": {"name": text(choice.get("name"), "tool_choice.name")}}


def _namespaces(body: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The name by which the engine knows a function → its namespace and its name there."""
    return {
        full_name(group["name"], tool["name"]): (group["name"], tool["name"])
        for group in body.get("tools") or ()
        if group.get("type") == "namespace"
        for tool in group.get("tools") or ()
    }


# ----------------------------------------------------------------------------------------------------- answer
def _output(body: Mapping[str, Any], chat: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
    choice = chat["choices"][0]
    wanted = LOGPROBS in (body.get("include") or ())
    logprobs = (wanted and (choice.get("logprobs") or {}).get("content")) or ()
    return answer_items(
        choice["message"], chat["id"], status=status, logprobs=logprobs, namespaces=_namespaces(body)
    )


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
