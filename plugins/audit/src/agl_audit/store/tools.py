"""The tools that ran in rollouts, counted by their spans."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import select

from agentlightning import semconv
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, everywhere, read
from agentlightning.store.sql.database import InJson
from agentlightning.store.sql.trace import SPAN_COLUMNS, span_from_row
from agentlightning.types import Record, Span
from agl_audit.behaviour.rollout import ToolRuns

_s = schema.spans.c
_SPANS = select(*SPAN_COLUMNS).where(InJson(_s.rollout_id), _s.wire == 0, _s.name != semconv.REWARD_SPAN)


@everywhere
@read
def tool_runs(store: Tables, rollout_ids: list[str]) -> dict[str, dict[str, ToolRuns]]:
    """Return rollout → attempt → the tools that ran in it; without those in which none ran."""
    found: dict[str, dict[str, ToolRuns]] = {}
    for row in store.db.all(_SPANS, ids=json.dumps(rollout_ids)):
        span = span_from_row(row)
        if is_tool(span):
            runs = found.setdefault(span.rollout_id, {}).setdefault(span.attempt_id, ToolRuns())
            runs.ran += 1
            runs.failed += span.status == "error"
    return found


def tools_of(record: Record, runs: Mapping[str, Mapping[str, ToolRuns]]) -> ToolRuns | None:
    """Return the tools that ran in the attempt of a record. ``runs``: those of :func:`tool_runs`."""
    of = runs.get(record.rollout.rollout_id, {})
    return None if record.attempt is None else of.get(record.attempt.attempt_id)


def is_tool(span: Span) -> bool:
    """Return whether a span is that of a tool that ran."""
    operation = span.attributes.get(semconv.OPERATION_NAME)
    return operation == "execute_tool" or (operation is None and semconv.TOOL_NAME in span.attributes)
