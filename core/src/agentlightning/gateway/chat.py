"""OpenAI's chat completions and completions: the APIs that engines speak themselves.

Whole answers and engines' streams pass unchanged. A whole answer can also be replayed as a stream, for
engines whose own streams lose token ids. Invariant: the replayed chunks, put together again, are the answer:
text, tool calls, ids, logprobs, finish reasons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agentlightning.gateway.apis import DONE, WRONG_SHAPE, ApiFormat, EngineApi, data_event, pieces
from agentlightning.gateway.errors import BadAnswer, RequestRefused

if TYPE_CHECKING:
    from agentlightning.gateway.attempts import OpenAttempt


class NativeApi(ApiFormat):
    """``POST /v1/chat/completions`` and ``POST /v1/completions``."""

    translated = False

    def __init__(self, engine_api: EngineApi) -> None:
        self.name = self.engine_api = engine_api

    @asynccontextmanager
    async def chat(self, body: dict[str, Any], attempt: OpenAttempt) -> AsyncIterator[dict[str, Any]]:
        """The same body. A completion without an answer (``max_tokens: 0``) is the engine's to take."""
        if self.name == "chat":
            check_limits(body, "max_tokens", "max_completion_tokens")
        yield body

    def render(self, body: Mapping[str, Any], raw: bytes, answer_id: str, stream: bool) -> bytes:
        """The answer itself, or its replay."""
        if not stream:
            return raw
        try:
            return b"".join(replay(raw, self.engine_api, wants_usage(body)))
        except WRONG_SHAPE as error:
            raise BadAnswer(f"the engine's message cannot be streamed: {error!r}") from None


CHAT: Final = NativeApi("chat")
COMPLETIONS: Final = NativeApi("completions")


def check_limits(body: Mapping[str, Any], *names: str) -> None:
    """Refuse limits of tokens below 1, with OpenAI's code: engines take a 0 for none."""
    for name in names:
        limit = body.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit < 1:
            message = f"{name} is {limit}: an answer has at least 1 token; leave it out for no limit"
            raise RequestRefused(400, "integer_below_min_value", message)


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a streamed request asks for the usage at the end of its stream."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def replay(raw: bytes, api: str, wants_usage: bool) -> Iterator[bytes]:
    """The events of a whole answer ``raw`` (checked before), the closing ``[DONE]`` included."""
    answer: dict[str, Any] = msgspec.json.decode(raw)
    head = _present(answer, "id", "created", "model", "system_fingerprint")
    head["object"] = "chat.completion.chunk" if api == "chat" else "text_completion"
    extra = _present(answer, "prompt_token_ids", "policy_version")
    for choice in answer["choices"]:
        for piece in _chunk_choices(choice, api):
            yield data_event(msgspec.json.encode({**head, "choices": [piece], **extra}))
            extra = {}
    if wants_usage:
        yield data_event(msgspec.json.encode({**head, "choices": [], "usage": answer.get("usage")}))
    yield data_event(DONE)


def _chunk_choices(choice: dict[str, Any], api: str) -> Iterator[dict[str, Any]]:
    """The choices of the chunks. The first with content has ids and logprobs, else the closing one."""
    index = choice.get("index", 0)
    ride = _present(choice, "token_ids", "prompt_token_ids", "logprobs", "policy_versions")
    if api == "chat":
        message = choice["message"]
        opening = {"role": message.get("role", "assistant"), "content": ""}
        yield {"index": index, "delta": opening, "finish_reason": None}
        bodies: list[dict[str, Any]] = [{"delta": delta} for delta in _deltas(message)]
        last: dict[str, Any] = {"delta": {}}
    else:
        bodies, last = [{"text": text} for text in pieces(choice["text"])], {"text": ""}
    for body in bodies:
        yield {"index": index, **body, "finish_reason": None, **ride}
        ride = {}
    yield {"index": index, **last, "finish_reason": choice.get("finish_reason"), **ride}


def _present(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: values[name] for name in names if values.get(name) is not None}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The message in pieces: reasoning and other fields first, then text, then tool calls."""
    for name, value in message.items():
        if name in ("role", "content", "tool_calls") or value is None or value in ([], {}, ""):
            continue
        if name.startswith("reasoning") and isinstance(value, str):
            yield from ({name: text} for text in pieces(value))
        else:
            yield {name: value}
    content = message.get("content")
    if isinstance(content, str):
        yield from ({"content": text} for text in pieces(content))
    for place, tool in enumerate(message.get("tool_calls") or ()):
        function = tool.get("function") or {}
        opening = {"index": place, **tool, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [opening]}
        for text in pieces(function.get("arguments") or ""):
            yield {"tool_calls": [{"index": place, "function": {"arguments": text}}]}
