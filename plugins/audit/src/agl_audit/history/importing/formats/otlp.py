"""OTLP JSON: OpenTelemetry's own encoding of spans, one request or one JSON line for each (the file
exporter).

Source: opentelemetry-proto, ``ExportTraceServiceRequest`` in its JSON form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agl_audit.history.importing.spans import ForeignSpan, traces_of
from agl_audit.history.importing.trace import ImportedTrace, UnreadableTrace
from agl_audit.history.importing.values import seconds

_SPANS = ("resourceSpans", "resource_spans")


def is_mine(first: Any) -> bool:
    """Return whether the first entry of a file is a request with spans."""
    return isinstance(first, Mapping) and any(name in first for name in _SPANS)


def read(entries: Sequence[Any]) -> list[ImportedTrace]:
    """Return the traces of all requests of a file."""
    return traces_of(span for entry in entries for span in _spans(entry))


def _spans(entry: Any) -> Iterator[ForeignSpan]:
    if not is_mine(entry):
        raise UnreadableTrace("an entry without resourceSpans")
    for resource in _get(entry, *_SPANS) or ():
        common = attributes(_get(resource.get("resource") or {}, "attributes") or ())
        for scope in _get(resource, "scopeSpans", "scope_spans") or ():
            for span in scope.get("spans") or ():
                yield _span(span, common)


def _get(entry: Mapping[str, Any], *names: str) -> Any:
    return next((entry[name] for name in names if name in entry), None)


def _span(span: Mapping[str, Any], common: Mapping[str, Any]) -> ForeignSpan:
    try:
        trace_id, span_id = str(_get(span, "traceId", "trace_id")), str(_get(span, "spanId", "span_id"))
        own = attributes(span.get("attributes") or ())
        for event in span.get("events") or ():
            own |= attributes(event.get("attributes") or ())
        status = span.get("status") or {}
        failed = status.get("code") in (2, "STATUS_CODE_ERROR")
        return ForeignSpan(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=_get(span, "parentSpanId", "parent_span_id") or None,
            name=str(span.get("name", "")),
            start=seconds(_get(span, "startTimeUnixNano", "start_time_unix_nano")),
            end=seconds(_get(span, "endTimeUnixNano", "end_time_unix_nano")),
            attributes={**common, **own},
            error=str(status.get("message") or "error") if failed else None,
        )
    except (AttributeError, TypeError, KeyError) as error:
        raise UnreadableTrace(f"a span that is not of OTLP: {error!r}") from None


def attributes(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return OTLP's list of keys and typed values as a mapping."""
    return {str(entry["key"]): _value(entry.get("value") or {}) for entry in entries}


def _value(value: Mapping[str, Any]) -> Any:
    for kind, inner in value.items():
        name = kind.replace("_", "").lower()
        if name == "intvalue":
            return int(inner)
        if name == "arrayvalue":
            return [_value(one) for one in inner.get("values") or ()]
        if name == "kvlistvalue":
            return attributes(inner.get("values") or ())
        return inner
    return None
