"""Messages between a program's processes and ``agl run`` beside spans: reports, and bodies of two routes."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

PROCESS: Final = "agl.process"
"""Resource attribute that holds a :class:`ProcessReport`, in an export without spans."""
ENTRIES: Final = "/v1/agl/program/entries"
"""Takes a :class:`BeginEntry`, answers with an :class:`EntryBegun`."""
END: Final = ENTRIES + "/{attempt_id}/end"
"""Takes an :class:`EndEntry` and answers once the end is on file."""
CONTENT_TYPE: Final = "application/msgpack"
"""The bodies are MessagePack, which can hold a reward of NaN until it is refused."""
T = TypeVar("T", bound=msgspec.Struct)


class ProcessReport(msgspec.Struct):
    """The state of capture in one process. A report replaces the one before, so a report may be lost."""

    process: str
    """Random, because process ids are used again."""
    counts: dict[str, int] = {}
    """Reason → number of records that could not be kept."""
    adapters: dict[str, str | None] = {}
    """Adapter → why it is not on."""


class BeginEntry(msgspec.Struct):
    """An entry is called and needs a rollout of its own."""

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
    """Encode a message. Raise ``ValueError`` if a value has no encoding."""
    try:
        return msgspec.msgpack.encode(message, enc_hook=str)
    except (TypeError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a message of type ``kind``. Raise ``ValueError`` for another body."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
