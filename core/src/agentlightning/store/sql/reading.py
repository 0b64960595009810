"""Reading of what attempts did: model calls, spans, and the records that credit needs, in a few queries.

Invariant: calls, rewards and spans of a record are in the order in which the store numbered them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Select, Table, and_, bindparam, func, or_, select, tuple_

from agentlightning import semconv
from agentlightning.store.base import NotFound
from agentlightning.store.bounds import LARGEST
from agentlightning.store.calls import StoredCall, StoredRecord
from agentlightning.store.pages import check_limit, record_pages
from agentlightning.store.sql import schema
from agentlightning.store.sql.attempts import ATTEMPT_COLUMNS, attempt_from_row, latest_attempt
from agentlightning.store.sql.core import Tables, read
from agentlightning.store.sql.database import InJson, given, pause
from agentlightning.store.sql.rollouts import ROLLOUT_COLUMNS, find_rollout, rollout_from_row
from agentlightning.store.sql.trace import CALL_COLUMNS, SPAN_COLUMNS, calls_of, span_from_row, stored_calls
from agentlightning.types import AttemptStatus, Call, EarlierAttempt, Record, Reward, Span
from agentlightning.types.record import reward_of

_s, _c, _a, _r = schema.spans, schema.calls, schema.attempts, schema.rollouts
_OF = given(_c.c.rollout_id)


def _page(*order: Column[int]) -> Select[Any]:
    """Select ``:n`` calls behind the place ``:after_<column>`` of an order."""
    place = tuple_(*(bindparam(f"after_{column.key}") for column in order))
    return select(*CALL_COLUMNS).where(_OF, tuple_(*order) > place).order_by(*order).limit(bindparam("n"))


_PAGE_ALL = _page(_c.c.seq)
_PAGE_OF = _page(_c.c.sequence, _c.c.choice, _c.c.seq).where(given(_c.c.attempt_id))
_BEFORE_ALL = (-LARGEST, -LARGEST, -LARGEST)
_PLACE = select(_c.c.sequence, _c.c.choice, _c.c.seq).where(_OF, given(_c.c.call_id))
_ORDER = (_a.c.sequence_id, _s.c.sequence)
_ITS_ATTEMPT = and_(_a.c.rollout_id == _s.c.rollout_id, _a.c.attempt_id == _s.c.attempt_id)
_SPANS = select(*SPAN_COLUMNS).join(_a, _ITS_ATTEMPT).where(given(_s.c.rollout_id)).order_by(*_ORDER)
_NUMBER = select(_a.c.sequence_id).where(given(_a.c.rollout_id, _a.c.attempt_id))


@read
def query_calls(
    store: Tables, rollout_id: str, attempt_id: str | None, limit: int | None, after: str | None
) -> list[Call]:
    check_limit(limit)
    place = _BEFORE_ALL
    if after is not None:
        found = store.db.one(_PLACE, rollout_id=rollout_id, call_id=after)
        if found is None:
            raise NotFound(f"after: rollout {rollout_id} has no call {after}")
        place = found
    of = attempt_of(store, rollout_id, attempt_id)
    bounds = dict(zip(("after_sequence", "after_choice", "after_seq"), place, strict=True))
    query = _PAGE_ALL if of is None else _PAGE_OF
    ids = {"rollout_id": rollout_id, "attempt_id": of}
    return calls_of(store, store.db.all(query, **ids, **bounds, n=limit or LARGEST))


@read
def spans(
    store: Tables, rollout_id: str, attempt_id: str | None, name: str | None, limit: int, after: str | None
) -> list[Span]:
    check_limit(limit)
    query = _SPANS.limit(limit)
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_of(store, rollout_id, attempt_id)}
    if ids["attempt_id"] is not None:
        query = query.where(given(_s.c.attempt_id))
    if name is not None:
        query = query.where(_s.c.name == name)
    if after is not None:
        attempt, _, number = after.rpartition("/")
        place = store.db.value(_NUMBER, rollout_id=rollout_id, attempt_id=attempt)
        if place is None or not number.isdigit():
            raise NotFound(f"after: no span {after}")
        query = query.where(tuple_(*_ORDER) > tuple_(place, int(number)))
    return [span_from_row(row) for row in store.db.all(query, **ids)]


def attempt_of(store: Tables, rollout_id: str, attempt_id: str | None) -> str | None:
    """Return the attempt id of ``latest``; ``""`` if there is no attempt yet."""
    if attempt_id is None:
        find_rollout(store, rollout_id)  # NotFound, if there is no such rollout
    if attempt_id != "latest":
        return attempt_id
    latest = latest_attempt(store, rollout_id)
    return "" if latest is None else latest.attempt_id


# ---------------------------------------------------------------------------------------------------- records
_IN_IDS = InJson(_r.c.rollout_id)
_IN_LATEST = _r.join(_a, and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id == _r.c.attempts))


def _of_latest(table: Table, columns: Sequence[Any]) -> Select[Any]:
    """Select the rows of the latest attempt of each rollout."""
    on = and_(table.c.rollout_id == _a.c.rollout_id, table.c.attempt_id == _a.c.attempt_id)
    return select(*columns).select_from(_IN_LATEST.join(table, on)).where(_IN_IDS)


_ROLLOUTS = select(*ROLLOUT_COLUMNS).where(_IN_IDS)
_ATTEMPTS = select(*ATTEMPT_COLUMNS).select_from(_IN_LATEST).where(_IN_IDS)
_CALLS_OF_LATEST = _of_latest(_c, CALL_COLUMNS).order_by(_c.c.seq)
_WANTED = or_(_s.c.name == semconv.REWARD_SPAN, _s.c.wire == 1)
_SPANS_OF_LATEST = _of_latest(_s, SPAN_COLUMNS).where(_WANTED).order_by(_s.c.sequence)
_CALL_COUNT = select(func.count()).where(
    _c.c.rollout_id == _a.c.rollout_id, _c.c.attempt_id == _a.c.attempt_id
)
_EARLIER = (
    select(_a.c.rollout_id, _a.c.attempt_id, _a.c.status, _a.c.reason, _CALL_COUNT.scalar_subquery())
    .join(_r, and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id < _r.c.attempts))
    .where(_IN_IDS)
    .order_by(_a.c.rollout_id, _a.c.sequence_id)
)


async def records(store: Tables, rollout_ids: Sequence[str]) -> list[Record]:
    found: list[Record] = []
    for page in record_pages(rollout_ids):
        found += [stored.whole() for stored in await stored_records(store, page)]
        await pause()
    return found


@read
def stored_records(store: Tables, rollout_ids: Sequence[str]) -> list[StoredRecord]:
    ids = json.dumps(list(rollout_ids))
    rollouts = {row[0]: rollout_from_row(row) for row in store.db.all(_ROLLOUTS, ids=ids)}
    missing = [i for i in rollout_ids if i not in rollouts]
    if missing:
        raise NotFound(f"no rollout {missing[0]}")
    latest = map(attempt_from_row, store.db.all(_ATTEMPTS, ids=ids))
    attempts = {attempt.rollout_id: attempt for attempt in latest}
    calls: defaultdict[str, list[StoredCall]] = defaultdict(list)
    for call in stored_calls(store.db.all(_CALLS_OF_LATEST, ids=ids)):
        calls[call.columns["rollout_id"]].append(call)
    rewards: defaultdict[str, list[Reward]] = defaultdict(list)
    wire: defaultdict[str, list[Span]] = defaultdict(list)
    for row in store.db.all(_SPANS_OF_LATEST, ids=ids):
        span = span_from_row(row)
        if (reward := reward_of(span)) is not None:
            rewards[span.rollout_id].append(reward)
        else:
            wire[span.rollout_id].append(span)
    earlier: defaultdict[str, list[EarlierAttempt]] = defaultdict(list)
    for rollout_id, attempt_id, status, reason, n in store.db.all(_EARLIER, ids=ids):
        before = EarlierAttempt(attempt_id=attempt_id, status=AttemptStatus(status), reason=reason, calls=n)
        earlier[rollout_id].append(before)
    found = []
    for i in rollout_ids:
        traces: dict[str, Any] = {"rewards": rewards[i], "wire": wire[i], "earlier": earlier[i]}
        record = Record(rollout=rollouts[i], attempt=attempts.get(i), **traces)
        found.append(StoredRecord(record, calls[i]))
    return found
