"""Anthropic's Messages API: a stateless subset.

A request's blocks become messages: the text and tool uses of an assistant are one turn; each tool result is a
turn of its own. This API carries the arguments of a tool call parsed, so their text is looked up by the
call's id: sent back, the turn is what the model wrote. Invariants: text and tool calls of an answer are the
engine's, in its order; what the SDK accumulates from the events is the message. Source: Anthropic API
reference, Messages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import msgspec
from aiohttp import web

import agl_gateway.apis.checks as checks
from agentlightning.gateway.answer import parse_error
from agentlightning.gateway.apis import Choose, Handler, Route, pieces
from agentlightning.gateway.attempts import Admitted, OpenAttempt
from agentlightning.gateway.errors import TOO_LONG, EngineUnreachable, RequestRefused
from agl_gateway.apis.checks import joined, listed, malformed, mapping, text, unsupported
from agl_gateway.apis.images import contents, messages_image
from agl_gateway.apis.translated import (
    ToolArguments,
    TranslatedApi,
    WrittenArguments,
    call_id,
    reasoning_of,
    tokens,
    typed_event,
)
from agl_gateway.edits.route import RouteEdits

TRANSLATED = frozenset({
    "context_management", "max_tokens", "messages", "model", "output_config", "output_format",
    "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_p",
})  # fmt: skip
"""Fields that have a meaning for the call."""
IGNORED = frozenset({"cache_control", "inference_geo", "metadata", "service_tier", "speed"})
"""Fields that change no token: bookkeeping, caching, billing."""
REFUSED = {
    "container": "run code in a tool of your own",
    "mcp_servers": "connect to MCP servers in the agent, and offer their tools as function tools",
}
"""Fields refused, and what to do instead."""
UNREADABLE = "unreadable_arguments"
"""Key for arguments that are no JSON object, in the input of a tool call."""
_TEXTS = {"text"}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NO_EDIT = {"type": "clear_thinking_20251015", "keep": "all"}
_STOP_REASONS = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use",
    "content_filter": "refusal",
}  # fmt: skip
_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 409: "conflict_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
Block = Mapping[str, Any]


class Messages(TranslatedApi):
    """``POST /v1/messages``."""

    name = "messages"
    azure = False
    keep_alive = typed_event({"type": "ping"})

    def routes(self) -> Mapping[Route, Handler]:
        """``count_tokens``."""
        return {("POST", "/v1/messages/count_tokens"): _count_tokens}

    @asynccontextmanager
    async def chat(self, body: dict[str, Any], attempt: OpenAttempt) -> AsyncIterator[dict[str, Any]]:
        """The chat body, with the arguments of earlier tool calls as the model wrote them."""
        yield self.chat_body(body, await attempt.part(WrittenArguments).by_id())

    def chat_body(
        self, body: dict[str, Any], arguments: ToolArguments = MappingProxyType({})
    ) -> dict[str, Any]:
        """The chat body of the same request. ``arguments``: those of earlier tool calls."""
        checks.check_fields(body, TRANSLATED | IGNORED, REFUSED)
        _check_values(body)
        limit = body.get("max_tokens")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise malformed("max_tokens", "a number of tokens, at least 1")
        messages = _messages(body, arguments)
        chat: dict[str, Any] = {"model": body.get("model", ""), "messages": messages, "max_tokens": limit}
        tools = enumerate(listed(body.get("tools"), "tools"))
        if translated := [_tool(tool, f"tools[{index}]") for index, tool in tools]:
            chat["tools"] = translated
        if body.get("tool_choice") is not None:
            chat |= _tool_choice(mapping(body["tool_choice"], "tool_choice"))
        form = (body.get("output_config") or {}).get("format") or body.get("output_format")
        if form and (response_format := checks.response_format(form, "output_config.format")):
            chat["response_format"] = response_format
        chat |= checks.copied(body, "temperature", "top_p")
        if sequences := listed(body.get("stop_sequences"), "stop_sequences"):
            stop = chat.get("stop") or []
            stop = [stop] if isinstance(stop, str) else listed(stop, "stop")
            chat["stop"] = [*sequences, *(one for one in stop if one not in sequences)]
        return chat

    def answer(self, body: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A ``message`` from the first choice of ``chat``."""
        choice = chat["choices"][0]
        reason = _STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn")
        if reason == "end_turn" and choice["message"].get("tool_calls"):
            reason = "tool_use"  # engines say "stop" of a tool that was forced
        sequence = choice.get("stop_reason")
        sequence = sequence if reason == "end_turn" and isinstance(sequence, str) else None
        usage = chat.get("usage") or {}
        return {
            "id": chat["id"],
            "type": "message",
            "role": "assistant",
            "model": chat.get("model") or body.get("model", ""),
            "content": _blocks(choice["message"], chat["id"]),
            "stop_reason": "stop_sequence" if sequence else reason,
            "stop_sequence": sequence,
            "usage": {
                "input_tokens": usage.get("prompt_tokens") or 0,
                "output_tokens": usage.get("completion_tokens") or 0,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
            },
            **tokens(chat),
        }

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """From ``message_start`` to ``message_stop``. The sampled tokens are in the opening event."""
        return map(typed_event, _events(answer))

    def error(self, status: int, raw: bytes) -> bytes:
        """``{"type": "error", "error": {…}}``, with OpenAI's ``code`` kept.

        The message of a prompt that is too long begins as Anthropic's does; agents look for it.
        """
        code, message = parse_error(status, raw)
        kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
        message = f"prompt is too long: {message}" if code == TOO_LONG else message
        error = {"type": kind, "message": message, "code": code}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": None})

    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same error as an event."""
        return typed_event(msgspec.json.decode(self.error(status, raw)))


MESSAGES: Final = Messages()


async def _count_tokens(admitted: Admitted, http: web.Request, choose: Choose) -> web.StreamResponse:
    """Answer ``{"input_tokens": n}``. No call is made, and none is recorded. Raise :class:`RequestRefused`:
    404 where the engine, which alone knows its tokenizer and chat template, cannot count.
    """
    async with MESSAGES.chat({"max_tokens": 1, **admitted.body}, admitted.attempt) as body:
        _, route = choose(admitted, body)
        edits, count = route.edits, None
        try:
            if isinstance(edits, RouteEdits):
                count = await edits.fitter.count({**body, "model": route.model})
        except EngineUnreachable as error:
            raise RequestRefused(error.status, error.code, str(error), retry=True) from None
        if count is None:
            message = f"the engine of policy {route.policy!r} has not counted this prompt (POST /tokenize)"
            raise RequestRefused(404, "cannot-count", f"{message}; read usage.input_tokens of the answer")
        return web.json_response({"input_tokens": count})


def tool_input(arguments: str) -> dict[str, Any]:
    """Arguments as a tool's input, which must be a JSON object."""
    try:
        value = msgspec.json.decode(arguments or "{}")
        msgspec.json.encode(value)
    except (ValueError, RecursionError, OverflowError):
        value = None
    return value if isinstance(value, dict) else {UNREADABLE: arguments}


def _check_values(body: Mapping[str, Any]) -> None:
    """Refuse values that the API has and the gateway does not serve."""
    thinking = checks.type_of(body.get("thinking") or {}, "thinking")
    if thinking not in (None, "disabled", "adaptive"):
        raise unsupported(
            f"thinking of type {thinking!r}",
            "the engine keeps no thinking budget: leave it out, or say adaptive; the model thinks as its "
            "chat template lets it",
        )
    edits = mapping(body.get("context_management") or {}, "context_management").get("edits")
    if any(edit != _NO_EDIT for edit in listed(edits, "context_management.edits")):
        instead = "set over_length: truncate on the policy's route"
        raise unsupported("an edit of context_management", instead)
    config = mapping(body.get("output_config") or {}, "output_config")
    checks.check_fields(config, {"effort", "format"}, {}, "output_config.")


# ------------------------------------------------------------------------------------------ request: messages
def _messages(body: Mapping[str, Any], arguments: ToolArguments) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if system := joined(body.get("system"), "system", _TEXTS):
        out.append({"role": "system", "content": system})
    turns = listed(body.get("messages"), "messages")
    if not turns:
        raise malformed("messages", "a list of at least one message")
    for index, turn in enumerate(turns):
        path = f"messages[{index}]"
        role, content = mapping(turn, path).get("role"), turn.get("content")
        if role == "assistant":
            out.append(_assistant(content, f"{path}.content", arguments))
        elif role == "user":
            out += _user(content, f"{path}.content")
        elif role == "system":
            out.append({"role": "system", "content": joined(content, f"{path}.content", _TEXTS)})
        else:
            raise malformed(f"{path}.role", "user, assistant or system")
    if out[-1]["role"] == "assistant":
        what = "an answer that is begun (a last message of the assistant)"
        raise unsupported(what, "end with the user's turn")
    return out


def _assistant(content: Any, path: str, arguments: ToolArguments) -> dict[str, Any]:
    """One turn: thinking, text and tool calls."""
    if content is None or isinstance(content, str):
        return {"role": "assistant", "content": content or ""}
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(listed(content, path)):
        at = f"{path}[{index}]"
        kind = checks.type_of(block, at)
        if kind == "tool_use":
            calls.append(_tool_call(block, at, arguments))
        elif kind == "thinking":
            thoughts.append(text(block.get("thinking"), f"{at}.thinking"))
        else:
            texts.append(checks.text_of(block, at, _TEXTS))
    turn: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if any(thoughts):
        turn["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _tool_call(block: Block, path: str, arguments: ToolArguments) -> dict[str, Any]:
    block_id, given = text(block.get("id"), f"{path}.id"), mapping(block.get("input"), f"{path}.input")
    written = next((one for one in arguments.get(block_id, ()) if tool_input(one) == given), None)
    if written is None:
        written = json.dumps(given, ensure_ascii=False)
    function = {"name": text(block.get("name"), f"{path}.name"), "arguments": written}
    return {"id": block_id, "type": "function", "function": function}


def _user(content: Any, path: str) -> list[dict[str, Any]]:
    """Tool results and the user's texts, in their order."""
    if content is None or isinstance(content, str):
        return [{"role": "user", "content": content or ""}]
    out: list[dict[str, Any]] = []
    said: list[str | dict[str, Any]] = []
    for index, block in enumerate(listed(content, path)):
        at = f"{path}[{index}]"
        if mapping(block, at).get("type") == "tool_result":
            if said:
                out.append({"role": "user", "content": contents(said)})
                said = []
            result = contents(_parts(block.get("content"), f"{at}.content"))
            call = text(block.get("tool_use_id"), f"{at}.tool_use_id")
            out.append({"role": "tool", "tool_call_id": call, "content": result})
        else:
            said.append(_part(block, at))
    if said or not out:
        out.append({"role": "user", "content": contents(said)})
    return out


def _parts(content: Any, path: str) -> list[str | dict[str, Any]]:
    """The texts and images of a tool's result."""
    if content is None or isinstance(content, str):
        return [content or ""]
    return [_part(block, f"{path}[{index}]") for index, block in enumerate(listed(content, path))]


def _part(block: Any, path: str) -> str | dict[str, Any]:
    is_image = checks.type_of(block, path) == "image"
    return messages_image(block, path) if is_image else checks.text_of(block, path, _TEXTS)


# --------------------------------------------------------------------------------------------- request: tools
def _tool(tool: Any, path: str) -> dict[str, Any]:
    if (kind := checks.type_of(tool, path)) not in (None, "custom"):
        instead = "offer tools of your own, with an input_schema; built-in ones must be off"
        raise unsupported(f"{path} of type {kind!r}", instead)
    schema = mapping(tool.get("input_schema"), f"{path}.input_schema")
    return checks.function(tool.get("name"), tool.get("description"), schema, tool.get("strict"), path)


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = checks.type_of(choice, "tool_choice")
    if kind == "tool":
        name = text(choice.get("name"), "tool_choice.name")
        chosen: Any = {"type": "function", "function": {"name": name}}
    elif kind in _TOOL_CHOICES:
        chosen = _TOOL_CHOICES[kind]
    else:
        raise malformed("tool_choice.type", "auto, any, tool or none")
    sequential = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": chosen, **sequential}


# ----------------------------------------------------------------------------------------------------- answer
def _blocks(message: Mapping[str, Any], answer_id: str) -> list[dict[str, Any]]:
    """Thinking, text, tool uses."""
    blocks: list[dict[str, Any]] = []
    if thought := reasoning_of(message):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    calls = message.get("tool_calls") or ()
    content = message.get("content") or message.get("refusal")
    if content or not calls:
        blocks.append({"type": "text", "text": content or ""})
    for index, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"].get("arguments") or ""
        use = {"id": call_id(call, answer_id, index), "name": name, "input": tool_input(arguments)}
        blocks.append({"type": "tool_use", **use})
    return blocks


# ----------------------------------------------------------------------------------------------------- stream
def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    usage = answer["usage"]
    begun = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(answer["content"]):
        yield from _block_events(block, index)
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(block: Block, index: int) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    if kind == "tool_use":
        opened = {**block, "input": {}}
        written = json.dumps(block["input"], ensure_ascii=False)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(written)]
    else:  # text and thinking: the field has the name of the type
        opened = {**block, kind: ""}
        deltas = [{"type": f"{kind}_delta", kind: piece} for piece in pieces(block[kind])]
    yield {"type": "content_block_start", "index": index, "content_block": opened}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}
