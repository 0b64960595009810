"""Encodes spans as an OTLP export request in protobuf, as the store's ``/v1/traces`` decodes it.

Source: opentelemetry-proto 1.x. The encoding is protobuf because it decodes twenty times as fast as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from agentlightning.types import Span

PATH: Final = "/v1/traces"
CONTENT_TYPE: Final = "application/x-protobuf"
_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_STATUS: Final = {"unset": 0, "ok": 1, "error": 2}
_INT64: Final = 1 << 63


def export_request(spans: Iterable[Span]) -> bytes:
    """Return an ``ExportTraceServiceRequest``. Raise ``ValueError`` or ``TypeError`` for a span without that
    form. The request does not name the attempt: its key does.
    """
    request = service.ExportTraceServiceRequest()
    for resource, group in groupby(spans, key=lambda span: span.resource):
        one = request.resource_spans.add()
        _fill(one.resource.attributes, resource)
        one.scope_spans.add().spans.extend(map(_span, group))
    return request.SerializeToString()


def resource_report(name: str, value: Mapping[str, Any]) -> bytes:
    """Return a request without spans whose resource has one attribute."""
    request = service.ExportTraceServiceRequest()
    _fill(request.resource_spans.add().resource.attributes, {name: value})
    return request.SerializeToString()


def _span(span: Span) -> trace.Span:
    made = trace.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id or ""),
        name=span.name,
        kind=_KINDS.get(span.kind, 1),  # type: ignore[arg-type]
        start_time_unix_nano=_nanoseconds(span.start_time),
        end_time_unix_nano=_nanoseconds(span.end_time),
    )
    made.status.code = _STATUS[span.status]  # type: ignore[assignment]
    made.status.message = span.status_message or ""
    _fill(made.attributes, span.attributes)
    for event in span.events:
        noted = made.events.add(name=event["name"], time_unix_nano=_nanoseconds(event["time"]))
        _fill(noted.attributes, event["attributes"])
    for link in span.links:
        linked = made.links.add(
            trace_id=bytes.fromhex(link["trace_id"]), span_id=bytes.fromhex(link["span_id"])
        )
        _fill(linked.attributes, link["attributes"])
    return made


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _fill(pairs: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        _set(pairs.add(key=key).value, value)


def _set(target: common.AnyValue, value: Any) -> None:
    """Write one value. ``None`` stays unset."""
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int) and -_INT64 <= value < _INT64:
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, Mapping):
        target.kvlist_value.SetInParent()
        _fill(target.kvlist_value.values, value)
    elif isinstance(value, list | tuple):
        target.array_value.SetInParent()
        for inner in value:
            _set(target.array_value.values.add(), inner)
    elif value is not None:
        target.string_value = str(value)
