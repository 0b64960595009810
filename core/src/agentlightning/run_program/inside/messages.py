"""What a program's processes and ``agl run`` exchange beside spans: reports, and the bodies of two routes."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

PROCESS: Final = "agl.process"
"""Attribute of a resource without spans: a :class:`ProcessReport`."""
ENTRIES: Final = "/v1/agl/program/entries"
"""Takes a :class:`BeginEntry`, answers with an :class:`EntryBegun`."""
END: Final = ENTRIES + "/{attempt_id}/end"
"""Takes an :class:`EndEntry`; an answer means that the end is on file."""
CONTENT_TYPE: Final = "application/msgpack"
"""Of the bodies: MessagePack has NaN, which a reward may be until it is refused."""
T = TypeVar("T", bound=msgspec.Struct)


class ProcessReport(msgspec.Struct):
    """The state of capture in one process. A report replaces the one before it, so not each has to arrive."""

    process: str
    """Random, because process ids are used again."""
    counts: dict[str, int] = {}
    """Reason → how much could not be kept."""
    adapters: dict[str, str | None] = {}
    """Adapter → why it is not on."""


class BeginEntry(msgspec.Struct):
    """An entry is called and wants a rollout of its own."""

    entry: str
    task: Any = None


class EntryBegun(msgspec.Struct):
    """The attempt that the entry works for."""

    rollout_id: str
    attempt_id: str
    key: str


class EndEntry(msgspec.Struct):
    """An entry has returned a reward, or nothing, or raised."""

    reward: float | None = None
    error: str | None = None


def encode(message: msgspec.Struct) -> bytes:
    """A message as a body; ``ValueError``: it has no such form."""
    try:
        return msgspec.msgpack.encode(message, enc_hook=str)
    except (TypeError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None


def decode(body: bytes, kind: type[T]) -> T:
    """The message in a body; ``ValueError``: there is none."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
