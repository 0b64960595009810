"""OTLP, the wire format of OpenTelemetry's exporters: requests decoded to spans, and responses.

Source: opentelemetry-proto 1.x (``ExportTraceServiceRequest``) and the OTLP/HTTP specification. JSON
bodies are the protobuf JSON mapping, except that trace and span ids are hex.

Each span is decoded by itself: an exporter drops a batch that is refused, so one damaged span would otherwise
lose its whole batch.

Invariants: sound spans + damaged spans = spans that were sent. A span is converted here as by
:mod:`agentlightning.capture.records` in the agent's process: hex ids, seconds, attributes that survive
JSON. Bytes, which JSON lacks, are base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from agentlightning.capture.records import jsonable
from agentlightning.types import Span
from agentlightning.types.base import RequestRefused

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_KINDS: Final = {2: "server", 3: "client", 4: "producer", 5: "consumer"}
_STATUS: Final[dict[int, Any]] = {1: "ok", 2: "error"}
_DECODE_ERRORS: Final = (
    DecodeError,
    json_format.ParseError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
    SystemError,  # protobuf raises it for a lone surrogate in a field's name
)
_IDS: Final = ("traceId", "spanId", "parentSpanId")


class Undecodable(RequestRefused):
    """The body is no export request."""


class ExportedSpans(NamedTuple):
    """The sound spans of one resource."""

    resource: Any
    spans: list[Any]


def decode(body: bytes, content_type: str) -> tuple[list[ExportedSpans], int]:
    """Decode an ``ExportTraceServiceRequest``; return its sound spans and the number of damaged ones.

    Raises :class:`Undecodable` where spans are damaged and none is sound.
    """
    kind, read = ("protobuf", _read_protobuf) if content_type == PROTOBUF else ("JSON", _read_json)
    exported: list[ExportedSpans] = []
    damage: list[Exception] = []
    try:
        for resource, encoded, decode_span in read(body):
            spans = []
            for span in encoded:
                try:
                    spans.append(decode_span(span))
                except _DECODE_ERRORS as error:
                    damage.append(error)
            exported.append(ExportedSpans(resource, spans))
        if damage and not any(one.spans for one in exported):
            raise damage[0]
    except _DECODE_ERRORS as error:
        message = f"the body is no ExportTraceServiceRequest in {kind}: {error}"
        raise Undecodable(400, "bad-body", message) from None
    return exported, len(damage)


_Parts = Iterator[tuple[Any, Iterable[Any], Callable[[Any], Any]]]
"""For each resource: the resource, its encoded spans, and the function that decodes one."""


def _frames() -> type[Message]:
    """Make ``ExportTraceServiceRequest`` with resources and spans as bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="agl/frames.proto", package="agl.frames")
    for name, fields in (
        ("Scope", [("spans", 2, "")]),
        ("ResourceSpans", [("resource", 1, ""), ("scope_spans", 2, "Scope")]),
        ("Request", [("resource_spans", 1, "ResourceSpans")]),
    ):
        message = file.message_type.add(name=name)
        for field_name, number, inner in fields:
            field = message.field.add(name=field_name, number=number)
            field.label, field.type = field.LABEL_REPEATED, field.TYPE_BYTES
            if inner:
                field.type, field.type_name = field.TYPE_MESSAGE, f".agl.frames.{inner}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("agl.frames.Request"))


_Frames: Final = _frames()


def _read_protobuf(body: bytes) -> _Parts:
    frames: Any = _Frames.FromString(body)
    for found in frames.resource_spans:
        resource = Resource.FromString(b"".join(found.resource))
        yield resource, (span for scope in found.scope_spans for span in scope.spans), trace.Span.FromString


def _read_json(body: bytes) -> _Parts:
    for found in _listed(json.loads(body), "resourceSpans"):
        scopes = _listed(found, "scopeSpans")
        resource = json_format.ParseDict(found.get("resource") or {}, Resource(), ignore_unknown_fields=True)
        yield resource, [span for scope in scopes for span in _listed(scope, "spans")], _span_from_json


def _span_from_json(found: Any) -> trace.Span:
    """Decode a span with hex ids; protobuf's JSON mapping has base64 for bytes."""
    for item in (found, *(found.get("links") or ())):
        for name in _IDS:
            if item.get(name) is not None:
                item[name] = base64.b64encode(bytes.fromhex(item[name])).decode()
    return json_format.ParseDict(found, trace.Span(), ignore_unknown_fields=True)


def _listed(found: Any, name: str) -> list[Any]:
    """Return the list under ``name``; ``ValueError`` for another type."""
    value = (found.get(name) or []) if isinstance(found, dict) else None
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list of objects")
    return value


def spans(exported: Iterable[ExportedSpans]) -> Iterator[Span]:
    """Convert the spans of a request; rollout and attempt stay empty."""
    for resource, found in exported:
        about = attributes(resource.attributes)
        yield from (_span(span, about) for span in found)


def _span(span: trace.Span, resource: dict[str, Any]) -> Span:
    return Span(
        rollout_id="",
        attempt_id="",
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        kind=_KINDS.get(span.kind, "internal"),
        status=_STATUS.get(span.status.code, "unset"),
        status_message=span.status.message or None,
        attributes=attributes(span.attributes),
        events=[
            {"name": e.name, "time": e.time_unix_nano / 1e9, "attributes": attributes(e.attributes)}
            for e in span.events
        ],
        links=[
            {
                "trace_id": link.trace_id.hex(),
                "span_id": link.span_id.hex(),
                "attributes": attributes(link.attributes),
            }
            for link in span.links
        ],
        resource=resource,
        start_time=span.start_time_unix_nano / 1e9,
        end_time=span.end_time_unix_nano / 1e9,
    )


def attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    """Return ``KeyValue`` pairs as a dict of JSON-able values."""
    found: dict[str, Any] = jsonable({pair.key: _value(pair.value) for pair in pairs})
    return found


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    given = getattr(value, kind)
    if kind == "array_value":
        return [_value(inner) for inner in given.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value) for pair in given.values}
    return base64.b64encode(given).decode() if kind == "bytes_value" else given


def answer(content_type: str, rejected: int = 0, reason: str = "") -> bytes:
    """Return an ``ExportTraceServiceResponse`` with the number of refused spans and the reason."""
    response = service.ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = reason
    if content_type == PROTOBUF:
        return bytes(response.SerializeToString())
    return json_format.MessageToJson(response, indent=None).encode()


def status(content_type: str, code: int, message: str) -> bytes:
    """Return a ``google.rpc.Status``: the body of a response to a failed request."""
    if content_type == JSON:
        return json.dumps({"code": code, "message": message}).encode()
    # The same fields on the wire as google.rpc.Status, which opentelemetry-proto does not have.
    same = service.ExportTracePartialSuccess(rejected_spans=code, error_message=message)
    return bytes(same.SerializeToString())
