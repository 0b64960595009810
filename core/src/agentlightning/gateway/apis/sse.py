"""Server-sent events: cut a byte stream into events, read them, and write them.

Source of the framing: WHATWG HTML, server-sent events. Invariant: the bytes of all events, joined, are those
that came in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentlightning.gateway.errors import BadAnswer

DONE = b"[DONE]"
KEEP_ALIVE = b": keep-alive\n\n"
PIECE = 48
"""Characters of text in one event of a replayed stream."""
EVENT_LIMIT = 8 * 2**20
"""Bytes of one event, at most; a stream with a longer event counts as broken."""
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventSplitter:
    """Cuts bytes into events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, each with its blank line."""
        data = self._rest + data if self._rest else data
        out: list[bytes] = []
        start = 0
        if b"\r" in data:
            for match in _BOUNDARY.finditer(data):
                out.append(data[start : match.end()])
                start = match.end()
        else:
            while (end := data.find(b"\n\n", start)) >= 0:
                out.append(data[start : end + 2])
                start = end + 2
        self._rest = data[start:]
        if len(self._rest) > EVENT_LIMIT:
            raise BadAnswer(f"an event of the engine's stream is longer than {EVENT_LIMIT} bytes")
        return out

    def end(self) -> list[bytes]:
        """The unfinished event at the end of the stream, closed."""
        rest, self._rest = self._rest, b""
        return [rest + b"\n\n"] if rest.strip() else []


def payload(event: bytes) -> bytes | None:
    """The data of an event; ``None`` for comments and events without data."""
    if (
        event.startswith(b"data: ")
        and event.endswith(b"\n\n")
        and event.find(b"\n") == len(event) - 2
        and b"\r" not in event
    ):
        return event[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def data_event(data: bytes) -> bytes:
    """One event of the chat API: data without a name."""
    return b"data: " + data + b"\n\n"


def typed_event(event: Mapping[str, Any]) -> bytes:
    """One event of a translated API: named by its type."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """Cut a text into the pieces of a replayed stream."""
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))
