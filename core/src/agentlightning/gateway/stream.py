"""An engine's stream: what of it may leave for the agent now, and the answer that it has made so far.

Invariants: the bytes of all events, joined, are those that came in, but for what was mended; the closing
events, from the last choice's finish reason on, are held, so that they can leave after the record. Source of
the framing: WHATWG HTML, server-sent events.
"""

from __future__ import annotations

import re

import msgspec

from agentlightning.gateway.answer import (
    HALF_CHARACTERS,
    MENDED,
    NO_INDEX,
    AnswerAssembler,
    AnswerChunk,
    EngineAnswer,
    check_answer,
    mended_text,
    parse_chunk,
    parse_error,
    raise_if_aborted,
)
from agentlightning.gateway.apis import DONE, data_event, wants_usage
from agentlightning.gateway.errors import BadAnswer, CallFailure
from agentlightning.gateway.request import ModelRequest

EVENT_LIMIT = 8 * 2**20
"""Bytes of one event, at most; a stream with a longer event counts as broken."""
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class StreamedAnswer:
    """Takes a stream as it arrives. ``limit``: bytes beyond which it counts as broken."""

    def __init__(self, request: ModelRequest, limit: int) -> None:
        self._request, self._limit, self._left = request, limit, limit
        self._events = EventSplitter()
        api = request.api.engine_api
        self._edit = request.route.edits.events(api)
        self._assembler = AnswerAssembler(api, request.choices)
        self._closing: list[bytes] = []
        self._done = False
        self._early: list[bytes] | None = []
        """Events without content, held until one with content comes: until then the call can be retried."""
        self.content_begun = False
        """An event with a part of the answer may leave."""
        self.edited: dict[str, str] = {}
        """What was mended (``Call.edited``)."""

    @property
    def tokens(self) -> int:
        """Token ids that have arrived."""
        return self._assembler.tokens

    @property
    def empty(self) -> bool:
        """Nothing of an answer has arrived."""
        return self._assembler.empty

    def feed(self, data: bytes) -> bytes:
        """The events of ``data`` that may leave now. Raise :class:`CallFailure` for a broken stream."""
        self._left -= len(data)
        if self._left < 0:
            raise BadAnswer(f"the engine's stream is longer than {self._limit} bytes")
        return b"".join([self._passed(event) for event in self._events.feed(data)])

    def end(self) -> tuple[bytes, EngineAnswer]:
        """The closing events and the whole answer, once the engine has closed its stream. Raise
        :class:`CallFailure` if the answer is not complete.
        """
        self._closing += [self._passed(event) for event in self._events.end()]
        if self._assembler.empty or not (self._done or self._assembler.finished):
            raise BadAnswer("the engine's stream ended before its answer was complete")
        raise_if_aborted(answer := self.answer())
        return b"".join(self._closing), answer

    def answer(self) -> EngineAnswer:
        """The answer so far, without the route's key should it have come in several pieces."""
        answer = self._assembler.answer()
        for choice in answer.choices:
            raw = msgspec.json.encode([choice.message, choice.text])
            if (kept := self._request.route.scrub(raw)) is not raw:
                choice.message, choice.text = msgspec.json.decode(kept)
        return answer

    def _passed(self, event: bytes) -> bytes:
        """The event as it may leave now; empty if it is held, or not for the agent."""
        request = self._request
        event = request.route.scrub(event)
        data = payload(event)
        if data is not None and (mended := mended_text(data)) is not data:
            event, data = data_event(mended), mended
            self.edited[MENDED] = HALF_CHARACTERS
        if data == DONE:
            self._done = True
        elif data is not None:
            chunk = parse_chunk(data, request.decode)
            if chunk.error is not None:
                _, message = parse_error(200, request.route.redact(data))
                raise CallFailure(502, "engine-error", message, event=request.route.redact(event))
            check_answer(chunk, request.choices, request.route.served_version())
            if self._assembler.add(chunk):
                data = _with_tool_calls_of(chunk, data)
                event = data_event(data)
                self.edited[MENDED] = NO_INDEX
            if not chunk.choices and chunk.usage is not None and not wants_usage(request.body):
                return b""  # the gateway asked for it, and the agent did not
            if self._edit is not None and chunk.choices and (edited := self._edit(data)) is not data:
                event = data_event(edited)
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


class EventSplitter:
    """Cuts bytes into events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, each with its blank line."""
        data = self._rest + data if self._rest else data
        ends = [match.end() for match in _BOUNDARY.finditer(data)]
        starts = [0, *ends]
        self._rest = data[starts[-1] :]
        if len(self._rest) > EVENT_LIMIT:
            raise BadAnswer(f"an event of the engine's stream is longer than {EVENT_LIMIT} bytes")
        return [data[start:end] for start, end in zip(starts, ends, strict=False)]

    def end(self) -> list[bytes]:
        """The unfinished event at the end of the stream, closed."""
        rest, self._rest = self._rest, b""
        return [rest + b"\n\n"] if rest.strip() else []


def payload(event: bytes) -> bytes | None:
    """The data of an event; ``None`` for comments and events without data."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
