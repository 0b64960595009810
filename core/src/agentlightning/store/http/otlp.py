"""OTLP, the wire format of OpenTelemetry's exporters: requests decoded to spans, and responses.

Source: opentelemetry-proto 1.x (``ExportTraceServiceRequest``) and the OTLP/HTTP specification. JSON
bodies are the protobuf JSON mapping, except that trace and span ids are hex.

Invariant: a span is converted here as by :mod:`agentlightning.capture.spans.convert` in the agent's
process: hex ids, seconds, attributes that survive JSON. Bytes, which JSON lacks, are base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from agentlightning.capture.spans.convert import jsonable
from agentlightning.store.http import otlp_salvage
from agentlightning.types import Span

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
    SystemError,  # protobuf's, of a lone surrogate in a field's name
)
_IDS: Final = ("traceId", "spanId", "parentSpanId")


class Undecodable(ValueError):
    """The body is no export request."""


def decode(body: bytes, content_type: str) -> tuple[Any, int]:
    """Decode an ``ExportTraceServiceRequest``; the request without its damaged spans, and their number.
    :class:`Undecodable` where no sound span is left.
    """
    kind, read = ("protobuf", _protobuf) if content_type == PROTOBUF else ("JSON", _json)
    try:
        return read(body)
    except _DECODE_ERRORS as error:
        raise Undecodable(f"the body is no ExportTraceServiceRequest in {kind}: {error}") from None


def _protobuf(body: bytes) -> tuple[Any, int]:
    try:
        return service.ExportTraceServiceRequest.FromString(body), 0
    except DecodeError as error:
        return _require_spans(otlp_salvage.from_protobuf(body), error)


def _json(body: bytes) -> tuple[Any, int]:
    found = _with_ids(json.loads(body))
    request = service.ExportTraceServiceRequest()
    try:
        return json_format.ParseDict(found, request, ignore_unknown_fields=True), 0
    except _DECODE_ERRORS as error:
        return _require_spans(otlp_salvage.from_json(found), error)


def _require_spans(salvaged: tuple[Any, int], error: Exception) -> tuple[Any, int]:
    """The salvaged request if it holds a span; else raise ``error``."""
    request, damaged = salvaged
    if any(scope.spans for resource in request.resource_spans for scope in resource.scope_spans):
        return request, damaged
    raise error


def _with_ids(found: Any) -> Any:
    """Replace hex ids by base64, which protobuf's JSON mapping has for bytes. An id that is not hex becomes a
    value that does not decode, so that only its own span is refused.
    """
    for span in _json_spans(found):
        for item in (span, *(span.get("links") or ())) if isinstance(span, dict) else ():
            for name in _IDS:
                if isinstance(item, dict) and isinstance(text := item.get(name), str):
                    item[name] = _as_base64(text)
    return found


def _as_base64(text: str) -> str | bool:
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except ValueError:
        return False


def _json_spans(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in found.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            yield from scope.get("spans") or ()


def count(request: Any) -> int:
    """The number of spans in a request."""
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


def spans(request: Any) -> Iterator[Span]:
    """The spans of a request, without their rollout and attempt."""
    for resource in request.resource_spans:
        about = attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _span(span, about)


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
    """An ``ExportTraceServiceResponse`` with the number of refused spans and why."""
    response = service.ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = reason
    return _encoded(response, content_type)


def _encoded(response: Any, content_type: str) -> bytes:
    if content_type == PROTOBUF:
        return bytes(response.SerializeToString())
    return json_format.MessageToJson(response, indent=None).encode()


def status(content_type: str, code: int, message: str) -> bytes:
    """A ``google.rpc.Status``: the body of a failed request's response."""
    if content_type == JSON:
        return json.dumps({"code": code, "message": message}).encode()
    # The same fields on the wire as google.rpc.Status, which opentelemetry-proto does not have.
    same = service.ExportTracePartialSuccess(rejected_spans=code, error_message=message)
    return bytes(same.SerializeToString())
