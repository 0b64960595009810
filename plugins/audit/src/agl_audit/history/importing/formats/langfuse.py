"""Langfuse: traces with their observations and scores, or observations alone, as its API gives them.

Sources: Langfuse's public API, ``GET /api/public/traces/{traceId}`` and ``GET /api/public/v2/observations``.
Names are in camel case in the API's JSON, and in snake case where the SDK's models are dumped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.chat import answer_of, messages_of
from agl_audit.history.importing.trace import ImportedCall, ImportedTrace, UnreadableTrace, count, number
from agl_audit.history.importing.values import parsed, seconds


def is_mine(first: Any) -> bool:
    """Return whether the first entry of a file is a trace, an observation, or a page of them."""
    first = _rows(first)[0]
    return isinstance(first, Mapping) and ("observations" in first or _is_observation(first))


def read(entries: Sequence[Any]) -> list[ImportedTrace]:
    """Return the traces of a file."""
    traces: dict[str, ImportedTrace] = {}
    for row in (row for entry in entries for row in _rows(entry)):
        if not is_mine(row):
            raise UnreadableTrace("an entry that is neither a trace nor an observation of Langfuse")
        alone = "observations" not in row
        trace_id = str(_get(row, "traceId") if alone else row.get("id", ""))
        trace = traces.setdefault(trace_id, ImportedTrace(trace_id))
        if alone:
            _observe(trace, row)
            continue
        trace.task = parsed(row.get("input"))
        for one in row["observations"]:
            if not isinstance(one, Mapping):
                raise UnreadableTrace(f"trace {trace_id}: its observations are ids; export them with fields")
            _observe(trace, one)
        for score in row.get("scores") or ():
            if isinstance(score, Mapping) and (value := number(score.get("value"))) is not None:
                trace.rewards.append((str(score.get("name", "score")), value))
            else:
                trace.left_out["score-without-a-number"] += 1
    return [trace.finished() for trace in traces.values()]


def _rows(entry: Any) -> list[Any]:
    pages = isinstance(entry, Mapping) and isinstance(entry.get("data"), list) and entry["data"]
    return list(pages) if pages else [entry]


def _is_observation(row: Mapping[str, Any]) -> bool:
    return _get(row, "traceId") is not None and "type" in row and _get(row, "startTime") is not None


def _get(row: Mapping[str, Any], name: str) -> Any:
    """Return a value by its name in camel case or in snake case."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return row.get(name, row.get(snake))


def _observe(trace: ImportedTrace, one: Mapping[str, Any]) -> None:
    """Add an observation: a call if it is a generation with messages."""
    if one.get("type") != "GENERATION":
        if _get(one, "parentObservationId") is None and trace.task is None:
            trace.task = parsed(one.get("input"))
        trace.left_out["observation-without-a-call"] += 1
    elif messages := messages_of(one.get("input")):
        trace.calls.append(_call(one, messages))
    else:
        trace.left_out["call-without-messages"] += 1


def _call(one: Mapping[str, Any], messages: list[dict[str, Any]]) -> ImportedCall:
    used = _get(one, "usageDetails") or one.get("usage") or {}
    metadata, given = parsed(one.get("metadata")) or {}, parsed(one.get("input"))
    return ImportedCall(
        messages=messages,
        answer=answer_of(one.get("output")),
        model=str(one.get("model") or ""),
        agent=str(metadata.get("agent") or "") if isinstance(metadata, Mapping) else "",
        tools=list(given.get("tools") or ()) if isinstance(given, Mapping) else [],
        start=seconds(_get(one, "startTime")),
        end=seconds(_get(one, "endTime")),
        prompt_tokens=count(used.get("input", used.get("promptTokens"))),
        completion_tokens=count(used.get("output", used.get("completionTokens"))),
        sampling=dict(parsed(_get(one, "modelParameters")) or {}),
        error=str(_get(one, "statusMessage") or "error") if one.get("level") == "ERROR" else None,
    )
