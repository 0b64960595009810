"""From OpenTelemetry's finished span to ours: hex ids, seconds, and attributes that survive JSON.

Invariant: a value that has no JSON form becomes text and is counted; no attribute is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.counts import COUNTS
from agentlightning.keys import PREFIX
from agentlightning.types import Span

_SECRET = frozenset({"api_key", "authorization", "Authorization"})
_ATTEMPT_KEY = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{40,}")
_STATUS: dict[StatusCode, Any] = {StatusCode.UNSET: "unset", StatusCode.OK: "ok", StatusCode.ERROR: "error"}


def jsonable(value: Any) -> Any:
    """``value`` with tuples as lists, keys as text, and whatever JSON cannot say as text (counted).

    Subclasses of text and numbers (enums, numpy's float64) become plain ones, scalars of array libraries the
    number they hold. Keys are masked: an ``api_key`` field, and an attempt's key anywhere in a text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _ATTEMPT_KEY.sub("agl-***", str.__str__(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _as_text(value)
    if isinstance(value, Mapping):
        return {str(k): "***" if str(k) in _SECRET and v else jsonable(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [jsonable(inner) for inner in value]
    if callable(item := getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return jsonable(item())
    if callable(dump := getattr(value, "model_dump", None)):
        return jsonable(dump())
    return _as_text(value)


def _as_text(value: Any) -> str:
    COUNTS.add("convert-stringified")
    return _ATTEMPT_KEY.sub("agl-***", str(value))


def convert(span: ReadableSpan, context: AttemptContext) -> Span:
    """A finished OpenTelemetry span as a span of ``context``'s attempt."""
    own = span.context
    return Span(
        rollout_id=context.rollout_id,
        attempt_id=context.attempt_id,
        name=span.name,
        trace_id=f"{own.trace_id:032x}" if own else "",
        span_id=f"{own.span_id:016x}" if own else "",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        kind=span.kind.name.lower(),
        status=_STATUS[span.status.status_code],
        status_message=span.status.description,
        attributes=jsonable(dict(span.attributes or {})),
        events=[
            {
                "name": event.name,
                "time": event.timestamp / 1e9,
                "attributes": jsonable(dict(event.attributes or {})),
            }
            for event in span.events
        ],
        links=[
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "span_id": f"{link.context.span_id:016x}",
                "attributes": jsonable(dict(link.attributes or {})),
            }
            for link in span.links
        ],
        resource=jsonable(dict(span.resource.attributes)),
        start_time=(span.start_time or 0) / 1e9,
        end_time=(span.end_time or 0) / 1e9,
    )
