"""Records as bytes: MessagePack (lossless for NaN and bytes), packed arrays, zstd level 3.

Token ids are little-endian int32, logprobs little-endian float32 (their precision at the engine). The first
byte of a blob says what follows: ``0`` MessagePack, ``1`` the same under zstd, ``2`` JSON under zstd (for
what MessagePack cannot hold: integers beyond 64 bits, lone surrogates in model text).

Invariant: ``unpack(pack(x)) == x`` for JSON-able values; logprobs come back rounded to float32.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec

from agentlightning.types import Call, Grammar, Rollout, RolloutConfig, Span, tokens
from agentlightning.types.arrays import Floats, pack_float32, to_bytes, to_list, unpack_float32
from agentlightning.types.base import LogprobsMode
from agentlightning.types.tokens import TokenIds

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_RAW, _ZSTD, _JSON = b"\x00", b"\x01", b"\x02"
_SMALL = 160
"""Bytes below which compression does not pay."""
_encode = msgspec.msgpack.Encoder(enc_hook=to_bytes).encode


class _Zstd(threading.local):
    """One compressor a thread: it keeps its tables from frame to frame and must not be shared."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(level=3)

    def compress(self, data: bytes) -> bytes:
        """Compress ``data`` as one frame."""
        return self.compressor.compress(data, self.compressor.FLUSH_FRAME)


_zstd = _Zstd()
Corrupt = zstd.ZstdError
"""Raised by :func:`unpack` for damaged compressed bytes."""


def as_json(value: Any) -> bytes:
    """Encode JSON by the standard library, which takes big integers, NaN and lone surrogates."""
    return json.dumps(msgspec.to_builtins(value, enc_hook=to_list)).encode()


def pack(value: Any, small: int = _SMALL) -> bytes:
    """Return a value as a blob, compressed from ``small`` bytes on. ``TypeError`` names a wrong type."""
    try:
        data = _encode(value)
    except (OverflowError, UnicodeEncodeError):
        return _JSON + _zstd.compress(as_json(value))
    return _RAW + data if len(data) < small else _ZSTD + _zstd.compress(data)


@cache
def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return the MessagePack decoder of a type, made once."""
    return msgspec.msgpack.Decoder(kind).decode


def unpack(blob: bytes, kind: Any = Any) -> Any:
    """Return the value of a blob, checked against ``kind``."""
    mark, body = blob[:1], blob[1:]
    if mark == _RAW:
        return decoder(kind)(body)
    if mark == _ZSTD:
        return decoder(kind)(zstd.decompress(body))
    if mark == _JSON:
        return msgspec.convert(json.loads(zstd.decompress(body)), kind)
    raise ValueError(f"not a blob of the store: it begins with {blob[:1]!r}")


def pack_optional(value: Any) -> bytes | None:
    """Empty and missing values take no space."""
    return pack(value) if value else None


def pack_config(config: RolloutConfig) -> bytes | None:
    """The usual configuration takes no space."""
    return None if config == RolloutConfig() else pack(config)


def pack_ids(ids: Sequence[int] | None) -> bytes | None:
    """Token ids as little-endian int32."""
    return None if ids is None else tokens.pack(ids)


def pack_floats(values: Sequence[float] | None) -> bytes | None:
    """Numbers as little-endian float32."""
    return None if values is None else pack_float32(values)


def unpack_ids(data: bytes | None) -> TokenIds | None:
    """The inverse of :func:`pack_ids`."""
    return None if data is None else TokenIds.unpacked(data)


def unpack_floats(data: bytes | None) -> Floats | None:
    """The inverse of :func:`pack_floats`, at float32 precision."""
    return None if data is None else unpack_float32(data)


class CallBody(msgspec.Struct, array_like=True):
    """The part of a call that is not in columns. Fields are only ever appended: older blobs then take the
    defaults. With a parent, the field before it holds only what is new (:mod:`agentlightning.store.calls`).
    """

    prompt_ids: bytes | None
    response_ids: bytes | None
    logprobs: bytes | None
    request: dict[str, Any] | None
    response: dict[str, Any] | None
    tags: dict[str, str]
    sampling: dict[str, Any]
    asked: dict[str, Any]
    allowed: list[list[int]] | None
    api: str
    response_id: str | None
    trace_id: str | None
    span_id: str | None
    retry: int
    model: str
    selected: bool
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    error: str | None
    masked: str | None
    start_time: float
    end_time: float
    edited: dict[str, Any] = {}
    ids_parent: str | None = None
    """The prompt begins with prompt + response of this call."""
    ids_shared: int = 0
    """How many token ids of it."""
    messages_parent: str | None = None
    """The request begins with messages + answer (or text) of this call."""
    messages_shared: int = 0
    """How many messages (or characters) of it."""
    same_values: dict[str, str] = {}
    """Key of the request → a call with the same value in its request."""
    grammar: Grammar | None = None
    logprobs_mode: LogprobsMode | None = None
    policy_versions: bytes | None = None


_PACKED = ("prompt_ids", "response_ids", "logprobs", "policy_versions")
_AS_THEY_ARE = tuple(
    name for name in CallBody.__struct_fields__ if name in Call.__struct_fields__ and name not in _PACKED
)
_as_they_are = attrgetter(*_AS_THEY_ARE)


def call_body(call: Call, *, prompt: bool = True) -> CallBody:
    """Return the body of a call; with ``prompt=False``, without the ids of its prompt."""
    return CallBody(
        prompt_ids=pack_ids(call.prompt_ids) if prompt else None,
        response_ids=pack_ids(call.response_ids),
        logprobs=pack_floats(call.logprobs),
        policy_versions=pack_ids(call.policy_versions),
        **dict(zip(_AS_THEY_ARE, _as_they_are(call), strict=True)),
    )


def call_from_body(body: CallBody, **columns: Any) -> Call:
    """Return the call of its columns and a body without parents."""
    values: dict[str, Any] = dict(zip(_AS_THEY_ARE, _as_they_are(body), strict=True))
    for name, unpacked in (
        ("prompt_ids", unpack_ids),
        ("response_ids", unpack_ids),
        ("logprobs", unpack_floats),
        ("policy_versions", unpack_ids),
    ):
        values[name] = unpacked(getattr(body, name))
    return Call(**{**values, **columns})


def token_count(usage: int | None, ids: Sequence[int] | None) -> int | None:
    """Return the engine's own count of tokens, else the number of ids, else ``None``."""
    return usage if usage is not None else len(ids) if ids is not None else None


def numbers(call: Call, blob: bytes) -> tuple[int | None, int | None, float, int]:
    """Return the numbers that statistics sum: tokens of the prompt (on the first choice of a request) and of
    the completion, seconds, and bytes of the blob.
    """
    prompt = token_count(call.prompt_tokens, call.prompt_ids)
    completion = token_count(call.completion_tokens, call.response_ids)
    seconds = max(0.0, call.end_time - call.start_time)
    return prompt if call.choice == 0 else None, completion, seconds, len(blob)


_SPAN_FIELDS = (
    "trace_id", "span_id", "parent_id", "kind", "status", "status_message", "attributes", "events", "links",
    "resource", "start_time", "end_time",
)  # fmt: skip
"""The fields of a span that are not columns. New ones go to the end, so that older blobs can be read."""
_SpanBody = msgspec.defstruct(
    "_SpanBody", [(name, get_type_hints(Span)[name]) for name in _SPAN_FIELDS], array_like=True
)


def pack_span(span: Span) -> bytes:
    """Return the blob of a span."""
    return pack([getattr(span, name) for name in _SPAN_FIELDS])


def unpack_span(blob: bytes, **columns: Any) -> Span:
    """Return the span of a blob and its columns."""
    return Span(**msgspec.structs.asdict(unpack(blob, _SpanBody)), **columns)


def pack_input(rollout: Rollout) -> bytes:
    """Pack the task of a rollout. ``TypeError`` names a value that cannot be stored."""
    try:
        return pack(rollout.input)
    except TypeError as error:
        raise TypeError(
            f"the input of rollout {rollout.rollout_id} cannot be stored: {error}. Give JSON-able values"
        ) from None
