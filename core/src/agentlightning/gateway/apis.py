"""The interface of an API that agents speak (hook ``agl_api_formats``).

Engines are asked in chat completions or completions. Any other API is translated: a request to a chat body, a
whole chat answer to the API's own answer and events. Invariant: ids, records, sampling and refusals of a
translated call are those of the chat call; a request that chat completions cannot express is refused with the
reason, and no field is dropped silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from aiohttp import web

from agentlightning.gateway.errors import SDK_NO_RETRY, error_body
from agentlightning.types import Call

if TYPE_CHECKING:
    from agentlightning.gateway.attempts import Admitted, OpenAttempt

EngineApi = Literal["chat", "completions"]
Route = tuple[str, str]
"""Method and path; a part ``{name}`` of the path stands for any."""
Count: TypeAlias = "Callable[[Admitted, Mapping[str, Any]], Awaitable[int]]"
"""Counts the tokens of a prompt: ``Pipeline.count_prompt``."""
Handler: TypeAlias = "Callable[[Admitted, web.Request, Count], Awaitable[web.StreamResponse]]"
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
