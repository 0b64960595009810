"""Model calls: the store writes what is new in each, and reads each as it was recorded (:mod:`.store.calls`).

Invariant: the index of an attempt holds no call that is not in the tables. A write that is undone drops the
index (:mod:`.cache`), and the next write makes it again from the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import select

from agentlightning.store import codec
from agentlightning.store.base import Conflict
from agentlightning.store.calls import CALL_FIELDS, CallIndex, StoredCall, columns_of, parents, whole_calls
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import write
from agentlightning.store.sql.queue.leases import LeaseStore
from agentlightning.store.sql.statements import InJson, given
from agentlightning.types import Call

Row = Sequence[Any]
_c = schema.calls.c
CALL_COLUMNS = (*(_c[name] for name in CALL_FIELDS), _c.seq, _c.data)
_CALLS = select(*CALL_COLUMNS)
_BY_ID = _CALLS.where(given(_c.call_id))
_BY_IDS = _CALLS.where(InJson(_c.call_id))
_OF_ATTEMPT = _CALLS.where(given(_c.rollout_id, _c.attempt_id))
_NUMBERS = ("prompt_tokens", "completion_tokens", "seconds", "size")


def stored_calls(
    rows: Iterable[Row], find: Callable[[Sequence[str]], Iterable[Row]] = lambda ids: ()
) -> list[StoredCall]:
    """Return the calls of rows of ``CALL_COLUMNS`` and the calls that they build on, in order of arrival.

    ``find`` returns the rows of call ids: of calls that the rows build on and do not hold. Whole attempts
    need none.
    """
    found: dict[str, tuple[int, StoredCall]] = {}
    missing = list(rows)
    while missing:
        for *columns, seq, data in missing:
            body: codec.CallBody = codec.unpack(data, codec.CallBody)
            found[columns[0]] = seq, StoredCall(dict(zip(CALL_FIELDS, columns, strict=True)), body)
        wanted = {i for _, call in found.values() for i in parents(call.body)} - found.keys()
        missing = list(find(sorted(wanted)))
    return [call for _, call in sorted(found.values(), key=lambda pair: pair[0])]


def calls_from_rows(rows: Sequence[Row], find: Callable[[Sequence[str]], Iterable[Row]]) -> list[Call]:
    """Return the calls of rows, in the order of the rows, each as it was recorded."""
    calls = {call.call_id: call for call in whole_calls(stored_calls(rows, find))}
    return [calls[row[0]] for row in rows]


_MOST_ARRIVALS = 2000
"""Spans and calls of an attempt whose index is made again from the table."""


class CallStore(LeaseStore):
    """Model calls."""

    @write
    def add_calls(
        self, calls: Sequence[Call], *, fence: int | None = None, request_id: str | None = None
    ) -> None:
        """Store model calls, all or none. A call id that is known with the same content is stored already."""
        now = self.clock()
        new = [call for call in calls if not self._is_stored(call)]
        for attempt, group in groupby(new, lambda call: (call.rollout_id, call.attempt_id)):
            part = list(group)
            cached = self._writable_attempt(*attempt, "calls", len(part), fence)
            self._insert_calls(part, cached.arrivals)
            self._touch(attempt[0], cached, now, len(part))

    def _is_stored(self, call: Call) -> bool:
        rows = self.db.all(_BY_ID, call_id=call.call_id)
        if not rows:
            return False
        (stored,) = self._calls(rows)
        if _content(stored) != _content(call):
            of = f"attempt {stored.attempt_id} of {stored.rollout_id}"
            raise Conflict(f"call {call.call_id} exists with other content, in {of}")
        return True

    def _insert_calls(self, calls: Sequence[Call], arrivals: int) -> None:
        """Insert the calls of one attempt, behind its ``arrivals`` spans and calls."""
        rollout_id, attempt_id = calls[0].rollout_id, calls[0].attempt_id
        make = partial(self._make_index, rollout_id, attempt_id, arrivals)
        index = self.cache.call_index(attempt_id, make)
        try:
            rows = []
            for arrival, call in enumerate(calls, arrivals + 1):
                blob = codec.pack(index.delta(call))
                columns = dict(zip(CALL_FIELDS, columns_of(call), strict=True))
                numbers = dict(zip(_NUMBERS, codec.numbers(call, blob), strict=True))
                rows.append({**columns, "arrival": arrival, "data": blob, **numbers})
            self.db.insert(schema.calls, *rows)
        except BaseException:
            self.cache.drop_call_index(attempt_id)  # it holds calls that are not in the table
            raise

    def _make_index(self, rollout_id: str, attempt_id: str, arrivals: int) -> CallIndex:
        """Make the index of an attempt from the table. That of a long attempt begins anew: reading all of it
        would take longer than the next call's bytes are worth.
        """
        index = CallIndex()
        if 0 < arrivals <= _MOST_ARRIVALS:
            rows = self.db.all(_OF_ATTEMPT, rollout_id=rollout_id, attempt_id=attempt_id)
            for call in self._calls(rows):
                index.delta(call)
        return index

    def _calls(self, rows: Sequence[Row]) -> list[Call]:
        """Return the calls of rows of ``CALL_COLUMNS``."""
        return calls_from_rows(rows, self._rows_of_calls)

    def _rows_of_calls(self, call_ids: Sequence[str]) -> list[tuple[Any, ...]]:
        return self.db.all(_BY_IDS, ids=json.dumps(call_ids))


def _content(call: Call) -> tuple[Any, ...]:
    """Return the content of a call, at the precision of the store."""
    blob = codec.pack(codec.call_body(call))
    return (*columns_of(call), blob)
