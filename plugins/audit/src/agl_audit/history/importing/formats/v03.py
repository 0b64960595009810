"""Spans of Agent Lightning v0.3: one JSON object for each, as its store and its ``Span`` model write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.spans import ForeignSpan, traces_of
from agl_audit.history.importing.trace import ImportedTrace, UnreadableTrace
from agl_audit.history.importing.values import seconds

_IDS = ("prompt_token_ids", "response_token_ids")


def is_mine(first: Any) -> bool:
    """Return whether the first entry of a file is a span of a rollout."""
    return isinstance(first, Mapping) and {"rollout_id", "attempt_id", "attributes"} <= first.keys()


def read(entries: Sequence[Any]) -> list[ImportedTrace]:
    """Return one trace for each attempt. Token ids of v0.3 are left out and counted: they have no logprobs,
    and nothing says which weights sampled them.
    """
    traces = traces_of(map(_span, entries))
    ids = {f"{e['rollout_id']}/{e['attempt_id']}": 0 for e in entries}
    for entry in entries:
        ids[f"{entry['rollout_id']}/{entry['attempt_id']}"] += any(n in entry["attributes"] for n in _IDS)
    for trace in traces:
        if ids[trace.trace_id]:
            trace.left_out["token-ids"] = ids[trace.trace_id]
    return traces


def _span(entry: Any) -> ForeignSpan:
    if not is_mine(entry):
        raise UnreadableTrace(
            "an entry that is no span of v0.3: it has no rollout_id, attempt_id, attributes"
        )
    status = entry.get("status") or {}
    failed = str(status.get("status_code", "")).upper() == "ERROR"
    return ForeignSpan(
        trace_id=f"{entry['rollout_id']}/{entry['attempt_id']}",
        span_id=str(entry.get("span_id", "")),
        parent_id=entry.get("parent_id") or None,
        name=str(entry.get("name", "")),
        start=seconds(entry.get("start_time")),
        end=seconds(entry.get("end_time")),
        attributes=entry["attributes"],
        error=str(status.get("description") or "error") if failed else None,
    )
