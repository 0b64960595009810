"""The sound spans of an OTLP export request that does not decode as a whole.

An exporter drops a batch that is refused, so one damaged span would lose its whole batch. Here each span is
decoded by itself. Source: ``ExportTraceServiceRequest`` of
opentelemetry-proto 1.x.

Invariant: sound spans + damaged spans = spans that were sent.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1 import trace_pb2 as trace


def _frames() -> type[Message]:
    """``ExportTraceServiceRequest`` with spans as bytes; all other fields stay as they came, unknown."""
    file = descriptor_pb2.FileDescriptorProto(name="agl/frames.proto", package="agl.frames")
    for name, field_number, inner in (("Scope", 2, ""), ("Resource", 2, "Scope"), ("Request", 1, "Resource")):
        field = file.message_type.add(name=name).field.add(name="parts", number=field_number)
        field.label, field.type = field.LABEL_REPEATED, field.TYPE_BYTES
        if inner:
            field.type, field.type_name = field.TYPE_MESSAGE, f".agl.frames.{inner}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("agl.frames.Request"))


_Frames: Final = _frames()


def from_protobuf(body: bytes) -> tuple[Any, int]:
    """Decode a request without its damaged spans; the request, and how many are damaged. ``DecodeError``: the
    messages around the spans are damaged too.
    """
    frames: Any = _Frames.FromString(body)
    damaged = 0
    for resource in frames.parts:
        for scope in resource.parts:
            sound = [span for span in scope.parts if _is_span(span)]
            damaged += len(scope.parts) - len(sound)
            scope.parts[:] = sound
    return service.ExportTraceServiceRequest.FromString(frames.SerializeToString()), damaged


def _is_span(data: bytes) -> bool:
    try:
        trace.Span.FromString(data)
    except DecodeError:
        return False
    return True


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
