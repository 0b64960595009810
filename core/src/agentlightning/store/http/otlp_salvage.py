"""The sound spans of an OTLP export request that does not decode as a whole.

An exporter drops a batch that is refused, so one damaged span would lose its whole batch. Here each span is
decoded by itself. Source: ``ExportTraceServiceRequest`` of
opentelemetry-proto 1.x and the protobuf wire format.

Invariant: sound spans + damaged spans = spans that were sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

_BYTES: Final = 2
"""Wire type of messages, strings and bytes."""
_SKIPPED: Final = {1: 8, 5: 4}
"""Wire type → bytes of a number of fixed size."""
_SPANS: Final = 2
"""Number of the field ``spans`` in ``ScopeSpans``, and of ``scope_spans`` in ``ResourceSpans``."""


def from_protobuf(body: bytes) -> tuple[Any, int]:
    """Decode a request without its damaged spans; the request, and how many are damaged. ``ValueError``: the
    messages around the spans are damaged too.
    """
    request, damaged = service.ExportTraceServiceRequest(), 0
    for number, resource_spans in _fields(body):
        if number != 1:
            continue
        resource = request.resource_spans.add()
        for part, content in _fields(resource_spans):
            if part != _SPANS:
                resource.MergeFromString(_message(part, content))
                continue
            scope = resource.scope_spans.add()
            for inner, span in _fields(content):
                if inner != _SPANS:
                    scope.MergeFromString(_message(inner, span))
                    continue
                try:
                    scope.spans.append(trace.Span.FromString(span))
                except DecodeError:
                    damaged += 1
    return request, damaged


def from_json(found: Any) -> tuple[Any, int]:
    """As :func:`from_protobuf`, for a body in JSON whose ids are base64 already."""
    request, damaged = service.ExportTraceServiceRequest(), 0
    for resource_spans in _listed(found, "resourceSpans"):
        resource = request.resource_spans.add()
        json_format.ParseDict(_without(resource_spans, "scopeSpans"), resource, ignore_unknown_fields=True)
        for scope_spans in _listed(resource_spans, "scopeSpans"):
            scope = resource.scope_spans.add()
            json_format.ParseDict(_without(scope_spans, "spans"), scope, ignore_unknown_fields=True)
            for span in _listed(scope_spans, "spans"):
                try:
                    scope.spans.append(json_format.ParseDict(span, trace.Span(), ignore_unknown_fields=True))
                except _DAMAGED:
                    damaged += 1
    return request, damaged


_DAMAGED = (
    json_format.ParseError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
    SystemError,  # protobuf's, of a lone surrogate in a field's name
)


def _listed(found: Any, name: str) -> list[Any]:
    """The list under ``name``; ``ValueError`` for another type."""
    value = (found.get(name) or []) if isinstance(found, dict) else None
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list of objects")
    return value


def _without(found: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != name}


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each length-delimited field of a message; other fields are skipped."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, at = _varint(body, at)
            if at + length > len(body):
                raise ValueError("a message breaks off")
            yield number, body[at : at + length]
            at += length
        elif kind == 0:
            _, at = _varint(body, at)
        elif kind in _SKIPPED:
            at += _SKIPPED[kind]
        else:
            raise ValueError(f"wire type {kind} does not occur in a request")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            raise ValueError("a number breaks off")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")


def _message(number: int, content: bytes) -> bytes:
    """A message of one field."""
    out, length = bytearray([number << 3 | _BYTES]), len(content)
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*out, length]) + content
