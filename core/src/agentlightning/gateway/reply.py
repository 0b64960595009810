"""The answer to one HTTP request: a body sent whole, or a stream whose head leaves with its first bytes.

Invariant: one answer leaves. Once the head of a stream has left, an error is the last event of that stream.
An agent that hangs up cancels the handler of its request: writing to it raises ``CancelledError``, as aiohttp
does itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web

from agentlightning.gateway.apis import ApiFormat
from agentlightning.gateway.errors import CallFailure, RequestRefused, error_body

T = TypeVar("T")
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass(slots=True)
class AgentReply:
    """Sends one answer in the shape of ``api``. ``keep_alive``: seconds between comments of a stream."""

    http: web.Request
    api: ApiFormat
    keep_alive: float = 5.0
    content_sent: bool = False
    """A part of the model's answer has left: the call cannot be retried."""
    _stream: web.StreamResponse | None = None

    @property
    def head_sent(self) -> bool:
        """The head of a stream has left."""
        return self._stream is not None

    async def write(self, data: bytes = b"") -> web.StreamResponse:
        """Send a part of a stream, and before the first part its head."""
        try:
            if self._stream is None:
                self._stream = web.StreamResponse(headers=_STREAM_HEADERS)
                await self._stream.prepare(self.http)
            if data:
                await self._stream.write(data)
        except ConnectionResetError:
            raise asyncio.CancelledError from None
        return self._stream

    async def alive_until(self, result: Awaitable[T]) -> T:
        """Await ``result``, and send comments meanwhile so that the agent's connection stays open."""
        waiting = asyncio.ensure_future(result)
        try:
            while not (await asyncio.wait({waiting}, timeout=self.keep_alive))[0]:
                await self.write(self.api.keep_alive)
            return waiting.result()
        finally:
            waiting.cancel()

    async def finish(self, body: bytes, headers: Mapping[str, str], stream: bool) -> web.StreamResponse:
        """Send an answer that is complete, or the end of a stream."""
        return await self.write(body) if stream else web.Response(body=body, headers=headers)

    async def fail(self, failure: CallFailure) -> web.StreamResponse:
        """Send the error of a call: as the answer, or as the last event of its stream."""
        if self.head_sent:
            return await self.write(
                failure.event or self._event(failure.status, failure.code, failure.message)
            )
        if (engine := failure.reply) is None:
            return self.api.error_response(failure.status, failure.code, str(failure), retry=failure.retry)
        headers = engine.headers | ({"Content-Type": "application/json"} if self.api.translated else {})
        body = self.api.error(engine.status, engine.body)
        return web.Response(body=body, status=engine.status, headers=headers)

    async def refuse(self, refused: RequestRefused) -> web.StreamResponse:
        """Send a refusal: as the answer, or as the last event of a stream."""
        if self.head_sent:
            return await self.write(self._event(refused.status, refused.reason, refused.message))
        response = self.api.error_response(refused.status, refused.reason, str(refused), retry=refused.retry)
        response.headers.update(refused.headers)
        return response

    def _event(self, status: int, code: str, message: str) -> bytes:
        return self.api.error_event(status, error_body(status, code, message))
