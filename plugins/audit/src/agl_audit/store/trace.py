"""The trace of an attempt: its spans with its model calls among them (:mod:`.call_spans`)."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import select

from agentlightning.store.base import NotFound
from agentlightning.store.pages import SortOrder, check_limit, check_order
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, everywhere, read
from agentlightning.store.sql.database import given
from agentlightning.store.sql.reading import attempt_of
from agentlightning.store.sql.trace import CALL_COLUMNS, SPAN_COLUMNS, calls_of, span_from_row
from agentlightning.types import Span
from agl_audit.store.call_spans import merge_calls

SortBy = Literal["sequence_id", "start_time", "end_time", "name"]
_s, _c, _a = schema.spans, schema.calls, schema.attempts
_CALLS = select(_c.c.arrival, *CALL_COLUMNS).where(given(_c.c.rollout_id)).order_by(_c.c.seq)
_CALLS_OF = _CALLS.where(given(_c.c.attempt_id))
_SPANS = select(*SPAN_COLUMNS).where(given(_s.c.rollout_id)).order_by(_s.c.seq)
_SPANS_OF = _SPANS.where(given(_s.c.attempt_id))
_NUMBERS = select(_a.c.attempt_id, _a.c.sequence_id).where(given(_a.c.rollout_id))


@everywhere
@read
def query_spans(
    store: Tables,
    rollout_id: str,
    attempt_id: str | None = "latest",
    *,
    trace_id: str | None = None,
    span_id: str | None = None,
    parent_id: str | None = None,
    name: str | None = None,
    name_contains: str | None = None,
    sort_by: SortBy = "sequence_id",
    sort_order: SortOrder = "asc",
    limit: int = 10_000,
    after: str | None = None,
) -> list[Span]:
    """Return the spans of an attempt (``latest``, an id; ``None``: of all, attempt by attempt) in order of
    arrival, model calls among them. ``after``: ``<attempt_id>/<sequence_id>`` of the page before.
    """
    check_limit(limit)
    _check_sort(sort_by, sort_order)
    equal = {"trace_id": trace_id, "span_id": span_id, "parent_id": parent_id, "name": name}
    wanted = {field: value for field, value in equal.items() if value is not None}
    spans = _spans_with_calls(store, rollout_id, attempt_id)
    numbers = dict(store.db.all(_NUMBERS, rollout_id=rollout_id))

    def keep(span: Span) -> bool:
        same = all(getattr(span, field) == value for field, value in wanted.items())
        return same and (name_contains or "") in span.name

    def key(span: Span) -> tuple[Any, ...]:
        place = (numbers.get(span.attempt_id, 0), span.sequence_id)
        return place if sort_by == "sequence_id" else (getattr(span, sort_by), *place)

    back = sort_order == "desc"
    if after is not None:
        edge = key(_span_at_cursor(spans, after, numbers))
        spans = [s for s in spans if (key(s) < edge if back else key(s) > edge)]
    return sorted(filter(keep, spans), key=key, reverse=back)[:limit]


def _spans_with_calls(store: Tables, rollout_id: str, attempt_id: str | None) -> list[Span]:
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_of(store, rollout_id, attempt_id)}
    whole = ids["attempt_id"] is None
    spans = [span_from_row(row) for row in store.db.all(_SPANS if whole else _SPANS_OF, **ids)]
    rows = store.db.all(_CALLS if whole else _CALLS_OF, **ids)
    calls = calls_of(store, [row[1:] for row in rows])
    return merge_calls(spans, zip(calls, (row[0] for row in rows), strict=True))


def _check_sort(sort_by: str, sort_order: str) -> None:
    if sort_by not in ("sequence_id", "start_time", "end_time", "name"):
        raise ValueError(f"sort_by must be sequence_id, start_time, end_time or name, not {sort_by!r}")
    check_order(sort_order)


def _span_at_cursor(spans: list[Span], after: str, numbers: dict[str, int]) -> Span:
    """Return the span of a cursor. A span that has since become part of its call's span keeps its place in
    the order of arrival.
    """
    attempt_id, _, number = after.rpartition("/")
    if attempt_id not in numbers or not number.isdigit():
        raise NotFound(f"after: no span {after}")
    for span in spans:
        if span.attempt_id == attempt_id and span.sequence_id == int(number):
            return span
    return Span(rollout_id="", attempt_id=attempt_id, name="", sequence_id=int(number))
