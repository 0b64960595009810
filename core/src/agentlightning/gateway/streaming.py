"""Streamed calls: passed through while the record grows on the side, or replayed from a whole answer.

Invariant: the closing events of a stream, from the last choice's finish reason on, leave after the record is
committed; an agent that saw the end has been recorded.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from aiohttp import web

from agentlightning.gateway.apis.chat import KEEP_ALIVE, event as sse
from agentlightning.gateway.apis.reasoning import StreamReasoningSplitter
from agentlightning.gateway.apis.sse import DONE, AnswerAssembler, EventSplitter, payload
from agentlightning.gateway.errors import (
    TOO_LONG,
    AgentGone,
    BadAnswer,
    EngineUnreachable,
    RequestRefused,
    error_body,
)
from agentlightning.gateway.record import (
    ModelRequest,
    answer_calls,
    assembled,
    checked,
    error_call,
    exact,
    replay_answer,
    stopped_calls,
)
from agentlightning.gateway.retry import ABORTED_BY_ENGINE, RetryAfterHold
from agentlightning.gateway.upstream.answer import (
    AnswerChunk,
    parse_answer,
    parse_chunk,
    parse_error,
    raise_if_aborted,
)

if TYPE_CHECKING:
    from agentlightning.gateway.handler import Handler

log = logging.getLogger(__name__)
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class _EngineError(Exception):
    """The engine said in its stream that it gave up; ``event`` is passed on."""

    def __init__(self, event: bytes, message: str) -> None:
        super().__init__(message)
        self.event = event


class StreamRelay:
    """Sorts a stream's events: what may leave now, what is held until the record is committed.

    ``limit``: bytes of a stream beyond which it counts as broken.
    """

    def __init__(self, exchange: ModelRequest, limit: int) -> None:
        self._exchange = exchange
        self._events = EventSplitter()
        self._left = limit
        self._limit = limit
        splits = exchange.api == "chat" and exchange.route.reasoning != "keep"
        self._split = StreamReasoningSplitter(exchange.route.reasoning == "split-opened") if splits else None
        self.assembler = exchange.assembler = AnswerAssembler(exchange.api, exchange.choices)
        self.held: list[bytes] = []
        self.done = False
        self._early: list[bytes] | None = []
        """Events that say nothing yet, as long as no other has come: an engine that gives the call up then is
        asked again."""

    def feed(self, data: bytes) -> bytes:
        """The events of ``data`` that may leave now."""
        self._left -= len(data)
        if self._left < 0:
            raise BadAnswer(f"the engine's stream is longer than {self._limit} bytes")
        return b"".join([e for event in self._events.feed(data) if (e := self._leaves(event)) is not None])

    def end(self) -> None:
        """The engine closed its stream."""
        self.held += [e for event in self._events.end() if (e := self._leaves(event)) is not None]
        if self.assembler.empty or not (self.done or self.assembler.finished):
            raise BadAnswer("the engine's stream ended before its answer was complete")

    def _leaves(self, event: bytes) -> bytes | None:
        """The event as it may leave now; ``None``: it is held, or not for the agent."""
        event = self._exchange.route.scrub(event)
        data = payload(event)
        if data == DONE:
            self.done = True
        elif data is not None:
            chunk = parse_chunk(data)
            if chunk.error is not None:
                redact = self._exchange.route.redact
                raise _EngineError(redact(event), parse_error(200, redact(data)).message)
            self.assembler.add(checked(self._exchange, chunk))
            if not chunk.choices and chunk.usage is not None and not self._exchange.wants_usage:
                return None  # asked for by the gateway, not by the agent
            if self._split is not None and chunk.choices and (spoken := self._split.chunk(data)) is not data:
                event = sse(spoken)
            if self._early is not None and not _says(chunk) and not self.assembler.finished:
                self._early.append(event)
                return None
        if self._early is not None and data is not None:
            event, self._early = b"".join([*self._early, event]), None
        if self.done or self.assembler.finished:
            self.held.append(event)
            return None
        if data is not None:
            self._exchange.begun = True
        return event


class Streamer:
    """Serves streamed calls. ``keep_alive``: seconds between comments while an engine is silent."""

    def __init__(self, handler: Handler, keep_alive: float) -> None:
        self._handler = handler
        self._keep_alive = keep_alive

    async def serve(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        """Answer one streamed call. An API format has events of its own, which need the whole answer."""
        passes = exchange.api_format is None and exchange.route.passes_through(exchange.tools)
        try:
            return await (self._pass if passes else self._replayed)(request, exchange)
        except (AgentGone, RequestRefused, RetryAfterHold):
            raise
        except Exception:
            if exchange.out is None:
                raise
            return await self._failed(exchange.out, exchange)

    # --------------------------------------------------------------------------------------- pass through
    async def _pass(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        sent = exchange.sent
        if exchange.route.trainable:
            options = sent.get("stream_options")
            sent["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        out = exchange.out
        handler = self._handler
        body, key = msgspec.json.encode(sent), exchange.attempt.info.attempt_id
        try:
            async with handler.client.post(
                exchange.route, exchange.api, body, request.headers, key
            ) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    head = {"Content-Type": response.headers.get("Content-Type", "application/json")}
                    raw = exchange.route.scrub(await handler.client.read(response))
                    head = exchange.route.redacted(head)
                    return await self._whole(request, exchange, out, response.status, head, raw)
                out = await self._open(request, exchange)
                relay = await self._relay(out, exchange, response)
            return await self._close(out, exchange, relay)
        except EngineUnreachable as error:
            if out is None:
                return await handler.unreachable(exchange, error)
            return await self._break(out, exchange, error.code, str(error), tokens=error.tokens)
        except BadAnswer as error:
            assert out is not None
            return await self._break(out, exchange, "bad-answer", str(error))
        except _EngineError as error:
            assert out is not None
            return await self._break(out, exchange, "engine-error", str(error), error.event)
        except RequestRefused as refused:
            return await self._refused(out, exchange, refused)

    async def _relay(
        self, out: web.StreamResponse, exchange: ModelRequest, response: aiohttp.ClientResponse
    ) -> StreamRelay:
        """Pass events on until the engine is done."""
        relay = StreamRelay(exchange, self._handler.client.answer_bytes)
        async for data in response.content.iter_any():
            if ready := relay.feed(data):
                await _write(out, ready)
        relay.end()
        return relay

    async def _close(
        self, out: web.StreamResponse, exchange: ModelRequest, relay: StreamRelay
    ) -> web.StreamResponse:
        """Commit the record, then let the held events go."""
        answer = assembled(exchange, relay.assembler)
        raise_if_aborted(answer)
        calls = answer_calls(exchange, answer)
        if exchange.route.trainable and not exact(calls):
            if exchange.route.stream_ids is None:
                exchange.route.inexact_streams.add(exchange.tools)
            for call in calls:
                if call.masked is None and exchange.selected and not call.has_ids:
                    call.masked = "no-ids"
        await self._handler.commit(exchange, calls)
        self._handler.metrics.streams["passed"] += 1
        await _write(out, b"".join(relay.held))
        return out

    # --------------------------------------------------------------------------------------------- replay
    async def _replayed(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        sent = exchange.sent
        sent.pop("stream_options", None)
        sent["stream"] = False
        out = exchange.out
        keep_alive = exchange.api_format.keep_alive if exchange.api_format else KEEP_ALIVE
        asking = asyncio.ensure_future(self._handler.ask(request, exchange))
        try:
            while not (await asyncio.wait({asking}, timeout=self._keep_alive))[0]:
                out = out or await self._open(request, exchange)
                await _write(out, keep_alive)
            status, headers, raw = asking.result()
            return await self._whole(request, exchange, out, status, headers, raw)
        except EngineUnreachable as error:
            if out is None:
                return await self._handler.unreachable(exchange, error)
            return await self._break(out, exchange, error.code, str(error), tokens=error.tokens)
        except RequestRefused as refused:
            return await self._refused(out, exchange, refused)
        finally:
            asking.cancel()

    async def _whole(
        self,
        request: web.Request,
        exchange: ModelRequest,
        out: web.StreamResponse | None,
        status: int,
        headers: dict[str, str],
        raw: bytes,
    ) -> web.StreamResponse:
        """A whole answer to a streamed call: replay it, or say what is wrong with it."""
        handler = self._handler
        if status != 200:
            if out is None:
                return await handler.engine_refused(exchange, status, headers, raw)
            info = await handler.refusal(exchange, status, exchange.route.redact(raw))
            code = TOO_LONG if info.over_length else info.code
            return await self._say(out, exchange, status, code, info.message)
        try:
            calls = answer_calls(exchange, checked(exchange, parse_answer(raw, exchange.api)))
            events = replay_answer(exchange, raw)
        except BadAnswer as error:
            if out is None:
                return await handler.bad_answer(exchange, error)
            return await self._break(out, exchange, "bad-answer", str(error))
        await handler.commit(exchange, calls)
        handler.metrics.streams["replayed"] += 1
        out = out or await self._open(request, exchange)
        await _write(out, events)
        return out

    # --------------------------------------------------------------------------------------------- pieces
    async def _open(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        if exchange.out is not None:  # by an earlier try
            return exchange.out
        out = web.StreamResponse(headers=_HEADERS)
        exchange.out = out
        try:
            await out.prepare(request)
        except ConnectionResetError:
            raise AgentGone from None
        return out

    async def _break(
        self,
        out: web.StreamResponse,
        exchange: ModelRequest,
        code: str,
        message: str,
        last: bytes | None = None,
        *,
        tokens: int = 0,
    ) -> web.StreamResponse:
        """The engine failed half-way: record what arrived, and end the stream with an error event."""
        if (code := self._handler.retries.failed(exchange, code, tokens)) == ABORTED_BY_ENGINE:
            last = None
        try:
            await self._handler.commit(exchange, stopped_calls(exchange, "error", f"{code}: {message}"))
        except RequestRefused as refused:
            return await self._refused(out, exchange, refused)
        if last is not None:
            await _write(out, last)
            return out
        return await self._say(out, exchange, 502, code, message)

    async def _failed(self, out: web.StreamResponse, exchange: ModelRequest) -> web.StreamResponse:
        """A fault of ours after the head has left: no second answer may follow it."""
        log.exception("attempt %s: the gateway failed within a stream", exchange.attempt.info.attempt_id)
        message = "the gateway failed within this stream; its log says why"
        try:
            if not exchange.committed:
                await self._handler.commit(exchange, [error_call(exchange, f"gateway-error: {message}")])
        except RequestRefused as refused:
            return await self._refused(out, exchange, refused)
        return await self._refused(out, exchange, RequestRefused(500, "gateway-error", message))

    async def _refused(
        self, out: web.StreamResponse | None, exchange: ModelRequest, refused: RequestRefused
    ) -> web.StreamResponse:
        """A refusal after the head has left can only be an event."""
        if out is None:
            raise refused
        await self._handler.count_refused(refused, exchange.caller)
        return await self._say(out, exchange, refused.status, refused.reason, str(refused))

    async def _say(
        self, out: web.StreamResponse, exchange: ModelRequest, status: int, code: str, message: str
    ) -> web.StreamResponse:
        """An error can only be the last event."""
        error = error_body(status, code, message)
        await _write(
            out, exchange.api_format.error_event(status, error) if exchange.api_format else sse(error)
        )
        return out


def _says(chunk: AnswerChunk) -> bool:
    """Whether a chunk has a part of the answer in it; the first one often has but the role."""
    return any(
        choice.token_ids or choice.text or any(v for k, v in (choice.delta or {}).items() if k != "role")
        for choice in chunk.choices
    )


async def _write(out: web.StreamResponse, data: bytes) -> None:
    """Send to the agent; one that hung up is :class:`AgentGone`, not a failure of the engine."""
    try:
        await out.write(data)
    except ConnectionResetError:
        raise AgentGone from None
