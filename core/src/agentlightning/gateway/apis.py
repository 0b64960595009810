"""The APIs that agents speak: chat completions, completions, and those of plugins (hook ``agl_api_formats``).

Engines are asked in chat completions or completions. Any other API is translated: a request to a chat body, a
whole chat answer to the API's own answer and events. Invariant: ids, records, sampling and refusals of a
translated call are those of the chat call; a request that chat completions cannot express is refused with the
reason, and no field is dropped silently.

The APIs that engines speak are here too. Whole answers and engines' streams pass unchanged. A whole answer
can also be replayed as a stream, for engines whose own streams lose token ids. Invariant: the replayed
chunks, put together again, are the answer: text, tool calls, ids, logprobs, finish reasons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from aiohttp import web

from agentlightning.gateway.errors import SDK_NO_RETRY, BadAnswer, RequestRefused, error_body
from agentlightning.types import Call

if TYPE_CHECKING:
    from agentlightning.gateway.attempts import Admitted, OpenAttempt
    from agentlightning.gateway.route import Upstream
    from agentlightning.types import Tags

EngineApi = Literal["chat", "completions"]
Route = tuple[str, str]
"""Method and path; a part ``{name}`` of the path stands for any."""
Choose: TypeAlias = "Callable[[Admitted, Mapping[str, Any]], tuple[Tags, Upstream]]"
"""Tags and route of a call: ``Planner.choose``."""
Handler: TypeAlias = "Callable[[Admitted, web.Request, Choose], Awaitable[web.StreamResponse]]"
"""Answers an admitted request of a further route."""
Message = dict[str, Any]
DONE = b"[DONE]"
KEEP_ALIVE = b": keep-alive\n\n"
PIECE = 48
"""Characters of text in one event of a replayed stream."""
WRONG_SHAPE = (AttributeError, KeyError, TypeError)
"""Raised by rendering an answer of another shape than the API's."""


class ApiFormat(ABC):
    """An API as the gateway serves it. By default it sends requests and errors in the engine's own shape.

    It holds no state. What it keeps of an attempt stands in the attempt (:meth:`OpenAttempt.part`).
    """

    name: str
    """The name in metrics and, of a translated API, in ``Call.edited["api"]``."""
    engine_api: EngineApi = "chat"
    """The API that the engine is asked in (``Call.api``)."""
    translated = True
    """Whether answers are rewritten; streams of other APIs may pass through."""
    azure = True
    """Whether Azure's clients, which write paths in a way of their own, speak it."""
    keep_alive = KEEP_ALIVE
    """Sent in a stream while its engine is silent."""
    instead: Mapping[str, str] = MappingProxyType({})
    """Ends of paths beside its own that clients ask for and nobody serves → what to do instead."""

    def routes(self) -> Mapping[Route, Handler]:
        """Further routes of the API. Their handlers get requests that are admitted as model calls are."""
        return {}

    @asynccontextmanager
    async def chat(self, body: dict[str, Any], attempt: OpenAttempt) -> AsyncIterator[dict[str, Any]]:
        """The engine's request body for ``body``; the call is made inside of the block. Raise
        :class:`RequestRefused` with the part that is not served.
        """
        yield body

    def remember(self, attempt: OpenAttempt, call: Call, chat: Mapping[str, Any]) -> None:  # noqa: B027
        """Keep what later requests of the attempt may refer to. ``call``: the record of the answer, which is
        durable. ``chat``: the engine's request, with the contents of its images.
        """

    def id_of(self, engine_id: str | None, own: str) -> str | None:
        """The id of an answer; ``own``: one that is unique in the run."""
        return engine_id

    def noted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What ``Call.edited`` says of a request, beside the API's name."""
        return {}

    @abstractmethod
    def render(self, body: Mapping[str, Any], raw: bytes, answer_id: str, stream: bool) -> bytes:
        """The answer to ``body``, whole or as the events of a stream, from the engine's whole answer ``raw``,
        which was parsed before. ``answer_id``: one that is unique in the run (:meth:`id_of`). Raise
        :class:`BadAnswer` when the API cannot express the answer.
        """

    def error(self, status: int, raw: bytes) -> bytes:
        """The body of an error answer in this API's shape."""
        return raw

    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same error as the last event of a stream."""
        return data_event(raw)

    def error_response(self, status: int, code: str, message: str, *, retry: bool = True) -> web.Response:
        """An error answer of the gateway; ``retry=False`` tells the SDK not to try again."""
        headers = ({"Retry-After": "1"} if status == 503 else None) if retry else SDK_NO_RETRY
        return web.Response(
            body=self.error(status, error_body(status, code, message)),
            status=status,
            headers=headers,
            content_type="application/json",
        )


def data_event(data: bytes) -> bytes:
    """One event of the chat API: data without a name."""
    return b"data: " + data + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """Cut a text into the pieces of a replayed stream."""
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))


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
