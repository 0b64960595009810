"""The answer to one HTTP request: a body sent whole, or a stream whose head leaves with its first bytes.

Invariant: one answer leaves. Once the head of a stream has left, an error is the last event of that stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web

from agentlightning.gateway.apis.base import ApiFormat
from agentlightning.gateway.errors import (
    SDK_NO_RETRY,
    AgentGone,
    CallFailure,
    RequestRefused,
    error_body,
)

T = TypeVar("T")
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass
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

    async def open(self) -> web.StreamResponse:
        """Send the head of a stream, once."""
        if self._stream is None:
            self._stream = web.StreamResponse(headers=_STREAM_HEADERS)
            try:
                await self._stream.prepare(self.http)
            except ConnectionResetError:
                raise AgentGone from None
        return self._stream

    async def write(self, data: bytes) -> web.StreamResponse:
        """Send a part of a stream. :class:`AgentGone`: the agent hung up."""
        stream = await self.open()
        try:
            await stream.write(data)
        except ConnectionResetError:
            raise AgentGone from None
        return stream

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
        if self._stream is None:
            if (engine := failure.reply) is not None:
                own_type = {"Content-Type": "application/json"} if self.api.translated else {}
                body = self.api.error(engine.status, engine.body)
                return web.Response(body=body, status=engine.status, headers=engine.headers | own_type)
            return error_response(self.api, failure.status, failure.code, str(failure), retry=failure.retry)
        if failure.event is not None:
            return await self.write(failure.event)
        return await self._write_error(failure.status, failure.code, str(failure))

    async def refuse(self, refused: RequestRefused) -> web.StreamResponse:
        """Send a refusal: as the answer, or as the last event of a stream."""
        if self._stream is not None:
            return await self._write_error(refused.status, refused.reason, str(refused))
        response = error_response(self.api, refused.status, refused.reason, str(refused), retry=refused.retry)
        response.headers.update(refused.headers)
        return response

    async def _write_error(self, status: int, code: str, message: str) -> web.StreamResponse:
        return await self.write(self.api.error_event(status, error_body(status, code, message)))


def error_response(
    api: ApiFormat, status: int, code: str, message: str, *, retry: bool = True
) -> web.Response:
    """An error answer in the shape of ``api``; ``retry=False`` tells the SDK not to try again."""
    headers = ({"Retry-After": "1"} if status == 503 else None) if retry else SDK_NO_RETRY
    return web.Response(
        body=api.error(status, error_body(status, code, message)),
        status=status,
        headers=headers,
        content_type="application/json",
    )
