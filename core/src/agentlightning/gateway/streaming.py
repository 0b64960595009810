"""An engine's stream passes through to the agent while its record grows on the side.

Invariant: the closing events, from the last choice's finish reason on, leave after the record is committed;
an agent that saw the end has been recorded.
"""

from __future__ import annotations

import aiohttp
import msgspec

from agentlightning.gateway.apis.chat import wants_usage
from agentlightning.gateway.apis.reasoning import StreamReasoningSplitter
from agentlightning.gateway.apis.sse import DONE, EventSplitter, data_event, payload
from agentlightning.gateway.errors import BadAnswer, CallFailure
from agentlightning.gateway.record import check_answer
from agentlightning.gateway.recorder import CallRecorder
from agentlightning.gateway.reply import AgentReply
from agentlightning.gateway.upstream.answer import (
    HALF_CHARACTERS,
    MENDED,
    NO_INDEX,
    AnswerChunk,
    mended_text,
    parse_chunk,
    parse_error,
)
from agentlightning.gateway.upstream.assembler import AnswerAssembler


async def relay(
    response: aiohttp.ClientResponse, reply: AgentReply, recorder: CallRecorder, limit: int
) -> bytes:
    """Pass an engine's stream on to the agent, except its closing events, and return these.

    ``limit``: bytes beyond which the stream counts as broken. Raise :class:`CallFailure` when it ends early.
    """
    await reply.write()
    stream = StreamRelay(recorder)
    left = limit
    async for data in response.content.iter_any():
        left -= len(data)
        if left < 0:
            raise BadAnswer(f"the engine's stream is longer than {limit} bytes")
        if ready := stream.feed(data):
            reply.content_sent = reply.content_sent or stream.content_begun
            await reply.write(ready)
    return stream.end()


class StreamRelay:
    """Sorts a stream's events: most may leave at once, the closing events wait for the record."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder
        self._request = request = recorder.request
        self._events = EventSplitter()
        api, reasoning = request.api.engine_api, request.route.settings.reasoning
        splits = api == "chat" and reasoning != "keep"
        self._split = StreamReasoningSplitter(reasoning == "split-opened") if splits else None
        self._assembler = recorder.assembler = AnswerAssembler(api, request.choices)
        self._closing: list[bytes] = []
        self._done = False
        self._early: list[bytes] | None = []
        """Events without content, held until one with content comes: until then the call can be retried."""
        self.content_begun = False
        """An event with a part of the answer may leave."""

    def feed(self, data: bytes) -> bytes:
        """The events of ``data`` that may leave now."""
        return b"".join([self._passed(event) for event in self._events.feed(data)])

    def end(self) -> bytes:
        """The closing events, once the engine has closed its stream."""
        self._closing += [self._passed(event) for event in self._events.end()]
        if self._assembler.empty or not (self._done or self._assembler.finished):
            raise BadAnswer("the engine's stream ended before its answer was complete")
        return b"".join(self._closing)

    def _note(self, mended: str) -> None:
        """Keep in the record what was mended."""
        request = self._recorder.request
        self._recorder.request = msgspec.structs.replace(request, edited={**request.edited, MENDED: mended})

    def _passed(self, event: bytes) -> bytes:
        """The event as it may leave now; empty if it is held, or not for the agent."""
        request = self._request
        event = request.route.scrub(event)
        data = payload(event)
        if data is not None and (mended := mended_text(data)) is not data:
            event, data = data_event(mended), mended
            self._note(HALF_CHARACTERS)
        if data == DONE:
            self._done = True
        elif data is not None:
            chunk = parse_chunk(data, request.decode)
            if chunk.error is not None:
                _, message = parse_error(200, request.route.redact(data))
                raise CallFailure(502, "engine-error", message, event=request.route.redact(event))
            if self._assembler.add(check_answer(request, chunk)):
                data = _with_tool_calls_of(chunk, data)
                event = data_event(data)
                self._note(NO_INDEX)
            if not chunk.choices and chunk.usage is not None and not wants_usage(request.body):
                return b""  # the gateway asked for it, and the agent did not
            if self._split is not None and chunk.choices and (split := self._split.chunk(data)) is not data:
                event = data_event(split)
            if self._early is not None and not _has_content(chunk) and not self._assembler.finished:
                self._early.append(event)
                return b""
        if self._early is not None and data is not None:
            event, self._early = b"".join([*self._early, event]), None
        if self._done or self._assembler.finished:
            self._closing.append(event)
            return b""
        self.content_begun = self.content_begun or data is not None
        return event


def _with_tool_calls_of(chunk: AnswerChunk, data: bytes) -> bytes:
    """The event ``data`` with the tool calls that ``chunk`` has."""
    event = msgspec.json.decode(data)
    for choice, known in zip(event["choices"], chunk.choices, strict=True):
        if known.delta and known.delta.get("tool_calls"):
            choice["delta"]["tool_calls"] = known.delta["tool_calls"]
    return msgspec.json.encode(event)


def _has_content(chunk: AnswerChunk) -> bool:
    """Whether a chunk has a part of the answer in it; the first chunk often has nothing but the role."""
    return any(
        choice.token_ids or choice.text or any(v for k, v in (choice.delta or {}).items() if k != "role")
        for choice in chunk.choices
    )
