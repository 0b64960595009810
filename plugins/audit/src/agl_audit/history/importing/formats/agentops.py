"""Traces of AgentOps, as its API gives them: ``{"trace_id": …, "spans": [{"span_id", "span_attributes",
…}]}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.spans import ForeignSpan, traces_of
from agl_audit.history.importing.trace import ImportedTrace, UnreadableTrace
from agl_audit.history.importing.values import seconds


def is_mine(first: Any) -> bool:
    """Return whether the first entry of a file is a trace, or a span, of AgentOps."""
    if not isinstance(first, Mapping):
        return False
    spans = first.get("spans")
    inner = spans[0] if isinstance(spans, list) and spans else first
    return isinstance(inner, Mapping) and "span_attributes" in inner


def read(entries: Sequence[Any]) -> list[ImportedTrace]:
    """Return the traces of a file."""
    spans = []
    for entry in entries:
        if not is_mine(entry):
            raise UnreadableTrace("an entry that is no trace of AgentOps: its spans have no span_attributes")
        trace_id = str(entry.get("trace_id", ""))
        spans += [_span(span, trace_id) for span in entry.get("spans", [entry])]
    return traces_of(spans)


def _span(span: Mapping[str, Any], trace_id: str) -> ForeignSpan:
    failed = str(span.get("status_code", "")).upper().endswith("ERROR")
    return ForeignSpan(
        trace_id=str(span.get("trace_id") or trace_id),
        span_id=str(span.get("span_id", "")),
        parent_id=span.get("parent_span_id") or None,
        name=str(span.get("span_name", "")),
        start=seconds(span.get("start_time")),
        end=seconds(span.get("end_time")),
        attributes=span.get("span_attributes") or {},
        error=str(span.get("status_message") or "error") if failed else None,
    )
