"""What a program's processes and ``agl run`` say to each other: msgpack, its length before it, over loopback.

The first frame of a connection is a :class:`Hello` with the attempt's key, and speaks for that attempt only.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec

from agentlightning.types import Span

HEAD = struct.Struct("!I")
LARGEST = 1 << 28
"""Bytes of a frame: more is not from a program of ours."""
GREETING = 1 << 14
"""Bytes of a :class:`Hello`: nobody may send more who has not said who he is."""


class Hello(msgspec.Struct, tag=True):
    """From the program, first: whose process this is."""

    key: str
    pid: int
    python: str


class SpanEnded(msgspec.Struct, tag=True):
    """From the program: a span has ended."""

    span: Span


class Counted(msgspec.Struct, tag=True):
    """From the program: something could not be kept."""

    reason: str
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class Adapted(msgspec.Struct, tag=True):
    """From the program: an adapter is on, or why not."""

    name: str
    error: str | None = None


class BeginEntry(msgspec.Struct, tag=True):
    """From the program: an entry is called; it wants a rollout of its own. Answered by :class:`EntryBegun` or
    :class:`EntryDenied`.
    """

    entry: str
    task: Any = None


class EndEntry(msgspec.Struct, tag=True):
    """From the program: an entry has returned a reward, or nothing, or raised."""

    attempt_id: str
    reward: float | None = None
    error: str | None = None


class EntryBegun(msgspec.Struct, tag=True):
    """To the program: the attempt that the entry works for."""

    rollout_id: str
    attempt_id: str
    key: str


class EntryDenied(msgspec.Struct, tag=True):
    """To the program: why there is no attempt."""

    why: str


class EntryEnded(msgspec.Struct, tag=True):
    """To the program: the entry's attempt is on record."""

    status: str


FromProgram = Hello | SpanEnded | Counted | Adapted | BeginEntry | EndEntry
ToProgram = EntryBegun | EntryDenied | EntryEnded
_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_from_program: msgspec.msgpack.Decoder[FromProgram] = msgspec.msgpack.Decoder(FromProgram)
_to_program: msgspec.msgpack.Decoder[ToProgram] = msgspec.msgpack.Decoder(ToProgram)


def packed(frame: FromProgram | ToProgram) -> bytes:
    """A frame with its length before it; ``ValueError``: it has no form on the wire."""
    try:
        body = _encoder.encode(frame)
    except (TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
    if len(body) > LARGEST:
        raise ValueError(f"a frame of {len(body)} bytes")
    return HEAD.pack(len(body)) + body


def from_program(body: bytes) -> FromProgram:
    """A frame of a program; ``ValueError``: it is none."""
    try:
        return _from_program.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None


def to_program(body: bytes) -> ToProgram:
    """An answer of ``agl run``; ``ValueError``: it is none."""
    try:
        return _to_program.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
