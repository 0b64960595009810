"""Spans of Arize Phoenix: rows of its dataframe of spans (``to_json(orient="records")``) or of its REST API.

The dataframe has columns ``context.trace_id``, ``context.span_id`` and ``attributes.…``; the API nests both.
Attributes follow OpenInference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.spans import ForeignSpan, traces_of
from agl_audit.history.importing.trace import ImportedTrace, UnreadableTrace, number
from agl_audit.history.importing.values import flat, seconds


def is_mine(first: Any) -> bool:
    """Return whether the first entry of a file is a span, or the API's page of spans."""
    if isinstance(first, Mapping) and isinstance(first.get("data"), list) and first["data"]:
        first = first["data"][0]
    if not isinstance(first, Mapping):
        return False
    context = first.get("context")
    return "context.span_id" in first or (isinstance(context, Mapping) and "span_id" in context)


def read(entries: Sequence[Any]) -> list[ImportedTrace]:
    """Return the traces of a file, with its annotations as rewards."""
    rows = [row for entry in entries for row in entry.get("data", [entry])]
    traces = traces_of(map(_span, rows))
    by_id = {trace.trace_id: trace for trace in traces}
    for row in rows:
        for one in row.get("annotations") or row.get("span_annotations") or ():
            score = number((one.get("result") or one).get("score"))
            if score is not None:
                by_id[_known(row)["context.trace_id"]].rewards.append((str(one.get("name", "score")), score))
    return traces


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return flat({"context": row["context"]}) if isinstance(row.get("context"), Mapping) else dict(row)


def _span(row: Any) -> ForeignSpan:
    if not is_mine(row):
        raise UnreadableTrace("an entry that is no span of Phoenix: it has no context.span_id")
    known = flat(row)
    attributes = {
        name.removeprefix("attributes."): value
        for name, value in known.items()
        if name.startswith("attributes.") and value is not None
    }
    failed = str(row.get("status_code", "")).upper() == "ERROR"
    kind = row.get("span_kind")
    return ForeignSpan(
        trace_id=str(known.get("context.trace_id", "")),
        span_id=str(known["context.span_id"]),
        parent_id=row.get("parent_id") or None,
        name=str(row.get("name", "")),
        start=seconds(row.get("start_time")),
        end=seconds(row.get("end_time")),
        attributes={**({"openinference.span.kind": kind} if kind else {}), **attributes},
        error=str(row.get("status_message") or "error") if failed else None,
    )
