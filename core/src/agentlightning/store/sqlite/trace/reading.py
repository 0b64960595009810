"""Reading of model calls, and of spans with the calls among them (:mod:`agentlightning.store.call_spans`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select, tuple_

from agentlightning.store.base import NotFound
from agentlightning.store.call_spans import merge_calls
from agentlightning.store.pages import SortBy, SortOrder, check_limit, check_order
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given
from agentlightning.store.sqlite.trace.calls import CALL_COLUMNS
from agentlightning.store.sqlite.trace.writing import SPAN_COLUMNS, TraceStore, span_from_row
from agentlightning.types import Call, Span

_s, _c, _a = schema.spans, schema.calls, schema.attempts
_OF = given(_c.c.rollout_id)
_CALLS = select(_c.c.arrival, *CALL_COLUMNS).where(_OF).order_by(_c.c.seq)
_CALLS_ALL = compile_sql(_CALLS)
_CALLS_OF = compile_sql(_CALLS.where(given(_c.c.attempt_id)))
_PLACE = compile_sql(select(_c.c.sequence, _c.c.choice, _c.c.seq).where(_OF, given(_c.c.call_id)))
_SPANS = select(*SPAN_COLUMNS).where(given(_s.c.rollout_id)).order_by(_s.c.seq)
_SPANS_ALL = compile_sql(_SPANS)
_SPANS_OF = compile_sql(_SPANS.where(given(_s.c.attempt_id)))
_NUMBERS = compile_sql(select(_a.c.attempt_id, _a.c.sequence_id).where(given(_a.c.rollout_id)))


class TraceReader(TraceStore):
    """Queries of spans and calls."""

    async def query_calls(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[Call]:
        """The calls of an attempt (``latest``, an id) by request and choice, or of all (``None``) in order of
        arrival. ``after``: the last call id of the page before.
        """
        check_limit(limit)

        def work() -> list[Call]:
            of = self._attempt_id(rollout_id, attempt_id)
            if limit is not None or after is not None:
                return self._calls(self._call_page(rollout_id, of, limit, after))
            found = self._calls([row[1:] for row in self._call_rows(rollout_id, of)])
            return sorted(found, key=lambda c: (c.sequence, c.choice)) if of is not None else found

        return await self.writer.read(work)

    def _call_page(
        self, rollout_id: str, of: str | None, limit: int | None, after: str | None
    ) -> list[tuple[Any, ...]]:
        query, order = select(*CALL_COLUMNS).where(_c.c.rollout_id == rollout_id), [_c.c.seq]
        if of is not None:
            query, order = query.where(_c.c.attempt_id == of), [_c.c.sequence, _c.c.choice, _c.c.seq]
        if after is not None:
            place = self.db.one(_PLACE, rollout_id=rollout_id, call_id=after)
            if place is None:
                raise NotFound(f"after: rollout {rollout_id} has no call {after}")
            query = query.where(tuple_(*order) > tuple_(*place[-len(order) :]))
        return self.db.all(compile_sql(query.order_by(*order).limit(limit)))

    async def query_spans(
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
        """Spans of an attempt (``latest``, an id; ``None``: of all, attempt by attempt) in order of arrival,
        model calls among them. ``after``: ``<attempt_id>/<sequence_id>`` of the page before.
        """
        check_limit(limit)
        _check_sort(sort_by, sort_order)
        exact = {"trace_id": trace_id, "span_id": span_id, "parent_id": parent_id, "name": name}
        wanted = {field: value for field, value in exact.items() if value is not None}

        def keep(span: Span) -> bool:
            if name_contains is not None and name_contains not in span.name:
                return False
            return all(getattr(span, field) == value for field, value in wanted.items())

        def work() -> list[Span]:
            spans = self._spans_with_calls(rollout_id, attempt_id)
            numbers = dict(self.db.all(_NUMBERS, rollout_id=rollout_id))

            def key(span: Span) -> tuple[Any, ...]:
                place = (numbers.get(span.attempt_id, 0), span.sequence_id)
                return place if sort_by == "sequence_id" else (getattr(span, sort_by), *place)

            back = sort_order == "desc"
            if after is not None:
                edge = key(_span_at_cursor(spans, after, numbers))
                spans = [s for s in spans if (key(s) < edge if back else key(s) > edge)]
            return sorted(filter(keep, spans), key=key, reverse=back)[:limit]

        return await self.writer.read(work)

    def _spans_with_calls(self, rollout_id: str, attempt_id: str | None) -> list[Span]:
        of = self._attempt_id(rollout_id, attempt_id)
        if of == "":
            return []
        rows = (
            self.db.all(_SPANS_ALL, rollout_id=rollout_id)
            if of is None
            else self.db.all(_SPANS_OF, rollout_id=rollout_id, attempt_id=of)
        )
        found = list(self._call_rows(rollout_id, of))
        calls = zip(self._calls([row[1:] for row in found]), (row[0] for row in found), strict=True)
        return merge_calls([span_from_row(row) for row in rows], calls)

    def _attempt_id(self, rollout_id: str, attempt_id: str | None) -> str | None:
        """The attempt id of ``latest``; ``""`` if there is no attempt yet."""
        if attempt_id != "latest":
            if attempt_id is None:
                self._rollout(rollout_id)
            return attempt_id
        latest = self._latest(rollout_id)
        return "" if latest is None else latest.attempt_id

    def _call_rows(self, rollout_id: str, of: str | None) -> Iterable[tuple[Any, ...]]:
        if of is None:
            return self.db.all(_CALLS_ALL, rollout_id=rollout_id)
        return self.db.all(_CALLS_OF, rollout_id=rollout_id, attempt_id=of) if of else []


def _check_sort(sort_by: str, sort_order: str) -> None:
    if sort_by not in ("sequence_id", "start_time", "end_time", "name"):
        raise ValueError(f"sort_by must be sequence_id, start_time, end_time or name, not {sort_by!r}")
    check_order(sort_order)


def _span_at_cursor(spans: list[Span], after: str, numbers: dict[str, int]) -> Span:
    """The span of a cursor. A span that has since become part of its call's span keeps its place in the
    order of arrival.
    """
    attempt_id, _, number = after.rpartition("/")
    if attempt_id not in numbers or not number.isdigit():
        raise NotFound(f"after: no span {after}")
    for span in spans:
        if span.attempt_id == attempt_id and span.sequence_id == int(number):
            return span
    return Span(rollout_id="", attempt_id=attempt_id, name="", sequence_id=int(number))
