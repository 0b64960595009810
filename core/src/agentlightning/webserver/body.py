"""A request's body within bounds: how many bytes, how compressed, how deeply nested.

Invariant: reading, decompressing and checking take time and memory in proportion to the bytes sent (at most
by :data:`MAX_RATIO`); a body that contradicts its headers is refused with a status below 500.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, TypeVar

from aiohttp import http_exceptions, web

from agentlightning.types.base import RequestRefused

MAX_DEPTH: Final = 100
"""Levels of nested objects and lists, at most: code that handles a value may recurse into it."""
MAX_CONTAINERS: Final = 500_000
"""Objects and lists in one body, at most: an empty one has 2 bytes, and takes 64 in memory."""
THREAD_BYTES: Final = 1 << 20
"""Bytes from which a body is decoded in a thread, so that the event loop goes on."""
IDLE_SECONDS: Final = 60.0
"""Seconds for the next bytes of a body that has begun."""
MAX_RATIO: Final = 200
"""Bytes that a compressed byte may become, beyond the first :data:`FREE_BYTES`."""
FREE_BYTES: Final = 4 << 20
MAX_MEMBERS: Final = 64
"""Members of a gzip body, at most."""
ENCODINGS: Final = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_PLAIN: Final = ("", "identity")
_WINDOW: Final = 64 << 10
"""Bytes that are decompressed at a time: the rest after a gzip member is copied, so it must be short."""
_BROKEN: Final = (web.RequestPayloadError, http_exceptions.HttpProcessingError)
T = TypeVar("T")


async def read(request: web.Request, limit: int) -> bytes:
    """Return the whole body, decompressed: ``limit`` bytes at most, before and after."""
    encoding = encoding_of(request)
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    pieces: list[bytes] = []
    size = 0
    try:
        # A body that came with its head, as small ones do, needs no timer.
        async with asyncio.timeout(None if request.content.is_eof() else IDLE_SECONDS) as waiting:
            while piece := await request.content.readany():
                size += len(piece)
                if size > limit:
                    raise too_large(limit)
                pieces.append(piece)
                if waiting.when() is not None:
                    waiting.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)
    except TimeoutError:
        message = f"no further part of the body came for {IDLE_SECONDS:g} s: send the request again"
        raise RequestRefused(408, "slow-body", message) from None
    except _BROKEN as error:
        reason = str(error).partition("\n")[0][:200]
        raise RequestRefused(400, "broken-body", f"the body contradicts its headers: {reason}") from None
    raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if encoding in _PLAIN:
        return raw
    return await run_in_thread(lambda: decompress(raw, encoding, limit))


def encoding_of(request: web.Request) -> str:
    """Return the encoding of the body. The 415 for an unknown one lists the known (RFC 9110, 15.5.16)."""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in _PLAIN or encoding in ENCODINGS:
        return encoding
    raise RequestRefused(
        415,
        "unknown-encoding",
        f"Content-Encoding {encoding[:100]!r}: send gzip, deflate, or none",
        headers={"Accept-Encoding": "gzip, deflate"},
    )


def decompress(raw: bytes, encoding: str, limit: int) -> bytes:
    """Decompress a gzip body (of one or more members) or a deflate body."""
    most = min(limit, FREE_BYTES + MAX_RATIO * len(raw))
    out: list[bytes] = []
    size, at, members = 0, 0, 1
    view = memoryview(raw)
    inflate = zlib.decompressobj(wbits=ENCODINGS[encoding])
    try:
        while True:
            window = view[at : at + _WINDOW]
            at += len(window)
            piece = inflate.decompress(window, most - size + 1)
            size += len(piece)
            if size > most:
                raise too_large(limit) if most == limit else _wrong("it decompresses to too much")
            out.append(piece)
            if not inflate.eof:
                if at == len(raw):
                    raise _wrong("it is truncated")
                continue
            at -= len(inflate.unused_data)
            if at == len(raw):
                return b"".join(out)
            if members == MAX_MEMBERS or encoding == "deflate":
                raise _wrong("data follows its end")
            members += 1
            inflate = zlib.decompressobj(wbits=ENCODINGS[encoding])
    except zlib.error as error:
        raise _wrong(str(error)) from None


def too_large(limit: int) -> RequestRefused:
    """Return the refusal of a body of more than ``limit`` bytes."""
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    return RequestRefused(413, "body-too-large", f"the request has more than {size}: send less at once")


def _wrong(why: str) -> RequestRefused:
    return RequestRefused(
        400, "bad-encoding", f"the body cannot be decompressed as its Content-Encoding says: {why}"
    )


# ---------------------------------------------------------------------------------------------------- content
def check_container_count(raw: bytes) -> None:
    """Refuse a JSON body that takes far more memory than bytes on the wire."""
    if len(raw) > THREAD_BYTES and raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS:
        raise RequestRefused(
            413, "too-many-values", f"the body has more than {MAX_CONTAINERS} objects and lists"
        )


class NotPlain(ValueError):
    """A value that is nested too deeply, or of a type that JSON lacks, or a key that is no text."""


_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_HOLDERS: Final = frozenset({dict, list})
_TEXT: Final = frozenset({str})


def check_plain(value: Any, largest: int | None = None) -> None:
    """Refuse a decoded value that is nested too deeply, has parts that JSON cannot express (extensions and
    times of MessagePack, keys that are no text), or integers from ``largest`` on. It goes level by level, and
    does not recurse.
    """
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise NotPlain(f"values are nested more than {MAX_DEPTH} levels deep")
        below: list[Any] = []
        for held in level:
            parts = held
            if type(held) is dict:
                if held and not _TEXT.issuperset(map(type, held)):
                    raise NotPlain("an object has keys that are no text")
                parts = held.values()
            elif type(held) is not list:
                parts = (held,)
            kinds = set(map(type, parts))
            if largest is not None and int in kinds:
                _check_integers(parts, largest)
            if not _SCALARS.issuperset(kinds):
                if odd := kinds - _SCALARS - _HOLDERS:
                    raise NotPlain(f"a value is of type {min(k.__name__ for k in odd)}, which JSON has not")
                below += [part for part in parts if type(part) in _HOLDERS]
        level = below


def _check_integers(parts: Iterable[Any], largest: int) -> None:
    if any(type(part) is int and not -largest <= part < largest for part in parts):
        raise NotPlain("an integer has more than 64 bits")


# ----------------------------------------------------------------------------------------------------- thread
@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "agl-bodies")  # the default pool's threads may all wait for this body


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread, so that the event loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(_pool(), work)


async def decoded(raw: bytes, decode: Callable[[bytes], T], large: int = THREAD_BYTES) -> T:
    """Return ``decode(raw)``, made in a thread if ``raw`` has more than ``large`` bytes."""
    return decode(raw) if len(raw) <= large else await run_in_thread(lambda: decode(raw))
