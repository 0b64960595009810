"""Reading of model calls, and of spans with the calls among them (:mod:`agentlightning.store.call_spans`)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Select, bindparam, select, tuple_

from agentlightning.store.base import NotFound
from agentlightning.store.bounds import LARGEST
from agentlightning.store.call_spans import merge_calls
from agentlightning.store.pages import SortBy, SortOrder, check_limit, check_order
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import read
from agentlightning.store.sql.statements import given
from agentlightning.store.sql.trace.calls import CALL_COLUMNS
from agentlightning.store.sql.trace.writing import SPAN_COLUMNS, TraceStore, span_from_row
from agentlightning.types import Call, Span

_s, _c, _a = schema.spans, schema.calls, schema.attempts
_OF = given(_c.c.rollout_id)
_CALLS = select(_c.c.arrival, *CALL_COLUMNS).where(_OF).order_by(_c.c.seq)
_CALLS_ALL = _CALLS
_CALLS_OF = _CALLS.where(given(_c.c.attempt_id))


def _page(*order: Column[int]) -> Select[Any]:
    """Select ``:n`` calls behind the place ``:after_<column>`` of an order."""
    place = tuple_(*(bindparam(f"after_{column.key}") for column in order))
    return select(*CALL_COLUMNS).where(_OF, tuple_(*order) > place).order_by(*order).limit(bindparam("n"))


_PAGE_ALL = _page(_c.c.seq)
_PAGE_OF = _page(_c.c.sequence, _c.c.choice, _c.c.seq).where(given(_c.c.attempt_id))
_BEFORE_ALL = (-LARGEST, -LARGEST, -LARGEST)
_PLACE = select(_c.c.sequence, _c.c.choice, _c.c.seq).where(_OF, given(_c.c.call_id))
_SPANS = select(*SPAN_COLUMNS).where(given(_s.c.rollout_id)).order_by(_s.c.seq)
_SPANS_ALL = _SPANS
_SPANS_OF = _SPANS.where(given(_s.c.attempt_id))
_NUMBERS = select(_a.c.attempt_id, _a.c.sequence_id).where(given(_a.c.rollout_id))


class TraceReader(TraceStore):
    """Queries of spans and calls."""

    @read
    def query_calls(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[Call]:
        """Return the calls of an attempt (``latest``, an id) by request and choice, or of all attempts
        (``None``) in order of arrival. ``after``: the last call id of the page before.
        """
        check_limit(limit)
        place = _BEFORE_ALL
        if after is not None:
            found = self.db.one(_PLACE, rollout_id=rollout_id, call_id=after)
            if found is None:
                raise NotFound(f"after: rollout {rollout_id} has no call {after}")
            place = found
        of = self._attempt_id(rollout_id, attempt_id)
        bounds = dict(zip(("after_sequence", "after_choice", "after_seq"), place, strict=True))
        query = _PAGE_ALL if of is None else _PAGE_OF
        ids = {"rollout_id": rollout_id, "attempt_id": of}
        return self._calls(self.db.all(query, **ids, **bounds, n=limit or LARGEST))

    @read
    def query_spans(
        self,
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
        """Return the spans of an attempt (``latest``, an id; ``None``: of all, attempt by attempt) in order
        of arrival, model calls among them. ``after``: ``<attempt_id>/<sequence_id>`` of the page before.
        """
        check_limit(limit)
        _check_sort(sort_by, sort_order)
        exact = {"trace_id": trace_id, "span_id": span_id, "parent_id": parent_id, "name": name}
        wanted = {field: value for field, value in exact.items() if value is not None}
        spans = self._spans_with_calls(rollout_id, attempt_id)
        numbers = dict(self.db.all(_NUMBERS, rollout_id=rollout_id))

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

    def _spans_with_calls(self, rollout_id: str, attempt_id: str | None) -> list[Span]:
        ids = {"rollout_id": rollout_id, "attempt_id": self._attempt_id(rollout_id, attempt_id)}
        whole = ids["attempt_id"] is None
        spans = [span_from_row(row) for row in self.db.all(_SPANS_ALL if whole else _SPANS_OF, **ids)]
        rows = self.db.all(_CALLS_ALL if whole else _CALLS_OF, **ids)
        calls = self._calls([row[1:] for row in rows])
        return merge_calls(spans, zip(calls, (row[0] for row in rows), strict=True))

    def _attempt_id(self, rollout_id: str, attempt_id: str | None) -> str | None:
        """Return the attempt id of ``latest``; ``""`` if there is no attempt yet."""
        if attempt_id is None:
            self._rollout(rollout_id)  # NotFound, if there is no such rollout
        if attempt_id != "latest":
            return attempt_id
        latest = self._latest(rollout_id)
        return "" if latest is None else latest.attempt_id


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
