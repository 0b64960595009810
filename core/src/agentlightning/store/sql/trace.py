"""Writing of the spans and model calls of attempts, in order of arrival, of the rewards that a runner
reports, and of an attempt's end.

Invariants: a span or call is stored only while its attempt may write (:mod:`.attempts`). Within an attempt
each number is given once: to a span, to a call, or to a caller that asked for one. The spans and the status
of one ``update_attempt`` are stored together or not at all. Only ``update_attempt``, which no attempt's key
opens, marks a reward as *returned*; later emitted rewards are refused.

Of a call the store writes what is new in it (:mod:`agentlightning.store.calls`). The index of an attempt
holds no call that is not in the tables: a write that is undone drops the index, and the next write makes it
again.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import select, text

from agentlightning import semconv
from agentlightning.capture.records import BadRecord, quarantine, validated
from agentlightning.store import codec
from agentlightning.store.base import Conflict
from agentlightning.store.bounds import check_metadata
from agentlightning.store.calls import CALL_FIELDS, CallIndex, StoredCall, columns_of, parents, whole_calls
from agentlightning.store.sql import schema
from agentlightning.store.sql.attempts import (
    FINAL_STATUSES,
    AttemptState,
    end_and_move_on,
    require_writable,
    revive,
    save_attempt,
    touch,
    writable_attempt,
)
from agentlightning.store.sql.core import StoreRefusal, Tables, write
from agentlightning.store.sql.database import InJson, Touched, given
from agentlightning.types import Attempt, AttemptStatus, Call, Span
from agentlightning.types.record import reward_of, reward_target

_s = schema.spans
SPAN_COLUMNS = (_s.c.rollout_id, _s.c.attempt_id, _s.c.sequence, _s.c.name, _s.c.data, _s.c.returned)
_IN_ATTEMPT = given(_s.c.rollout_id, _s.c.attempt_id)
_HAS_RETURNED = select(_s.c.seq).where(_IN_ATTEMPT, text("returned = 1")).limit(1)
_HAS_RETURNED = _HAS_RETURNED.with_hint(_s, "INDEXED BY spans_returned", "sqlite")
_EMITTED = select(*SPAN_COLUMNS).where(_IN_ATTEMPT, _s.c.name == semconv.REWARD_SPAN, text("returned = 0"))
OVERRIDDEN = "reward-beside-the-returned"
"""Reason that an emitted reward does not count: the agent returned one of the same name and target."""


BAD_SPAN = "bad-record"
"""Reason of spans that are no valid records: they are kept as ``agentlightning.bad_record``."""
BadCounts = Counter[tuple[str, str]]
"""Rollout id and attempt id → spans that are no valid records."""


def admitted(spans: Sequence[Span]) -> tuple[list[Span], BadCounts]:
    """Return the spans, each valid one as it is and a bad-record span in place of each other, and counts of
    these. Every writer of spans comes through here.
    """
    found, bad = [], BadCounts()
    for place, span in enumerate(spans):
        if not isinstance(span, Span):
            raise TypeError(f"spans[{place}] is a {type(span).__name__}, not a Span")
        try:
            kept = validated(span)
        except BadRecord as error:
            reward = reward_of(span) if error.kind == "bad-reward" else None
            if reward is not None and not math.isfinite(reward.value):
                kept = span  # a reward that is missing, with its reason; credit counts it
            else:
                kept = quarantine(span, error, *owner_of(span))
                kept.sequence_id = span.sequence_id
                bad[owner_of(span)] += 1
        found.append(kept)
    return found, bad


def span_from_row(row: Sequence[Any]) -> Span:
    """Return the span of a row of ``SPAN_COLUMNS``."""
    known = {"rollout_id": row[0], "attempt_id": row[1], "sequence_id": row[2], "name": row[3]}
    try:
        return codec.unpack_span(row[4], **known, returned=bool(row[5]))
    except ValueError as error:  # an earlier version took it
        return Span(**{**known, "name": semconv.BAD_RECORD_SPAN}, status="error", status_message=str(error))


def owner_of(span: Span) -> tuple[str, str]:
    """Return rollout id and attempt id of a span."""
    return span.rollout_id, span.attempt_id


async def add_many_spans(store: Tables, spans: Sequence[Span], request_id: str | None) -> list[Span]:
    spans, bad = admitted(spans)
    return await store.write_once(
        "add_spans",
        lambda: _add_spans(store, spans, bad),
        request_id,
        list[int],
        to_answer=lambda stored: [s.sequence_id for s in stored],
        from_answer=lambda numbers: _assign_numbers(spans, numbers),
        touched=lambda: Touched.by({"spans": spans}),
    )


def _add_spans(store: Tables, spans: Sequence[Span], bad: BadCounts) -> list[Span]:
    now = store.clock()
    count_bad(store, bad)
    for owner, group in groupby(spans, owner_of):
        part = list(group)
        cached = writable_attempt(store, *owner, "spans", len(part))
        refuse_late_rewards(store, part)
        _assign_numbers(part, range(cached.arrivals + 1, cached.arrivals + 1 + len(part)))
        insert_spans(store, part)
        touch(store, owner[0], cached, now, len(part))
    return list(spans)


def count_bad(store: Tables, bad: BadCounts) -> None:
    """Count spans that are no valid records."""
    for owner, n in bad.items():
        store.add_count("refused", BAD_SPAN, *owner, n)


def refuse_late_rewards(store: Tables, spans: Sequence[Span]) -> None:
    """Raise :class:`StoreRefusal` for a reward among the spans of an attempt whose agent has returned one."""
    n = sum(span.name == semconv.REWARD_SPAN for span in spans)
    if not n:
        return
    rollout_id, attempt_id = owner_of(spans[0])
    if store.db.one(_HAS_RETURNED, rollout_id=rollout_id, attempt_id=attempt_id):
        message = (
            f"attempt {attempt_id} of {rollout_id}: a reward is refused, what the agent returned is on "
            "record already"
        )
        raise StoreRefusal(message, "rewards-after-the-returned", rollout_id, attempt_id, n)


def insert_spans(store: Tables, spans: Sequence[Span], returned: bool = False) -> None:
    """Insert spans, which have their numbers. ``returned``: the rewards among them are returned ones."""
    rows = []
    for span in spans:
        span.returned = returned and span.name == semconv.REWARD_SPAN
        rows.append(
            {
                "rollout_id": span.rollout_id,
                "attempt_id": span.attempt_id,
                "sequence": span.sequence_id,
                "name": span.name,
                "wire": int(span.attributes.get(semconv.LAYER) == "wire"),
                "data": codec.pack_span(span),
                "returned": int(span.returned),
            }
        )
    store.db.insert(_s, *rows)


@write
def update_attempt(
    store: Tables,
    rollout_id: str,
    attempt_id: str,
    status: AttemptStatus | None,
    reason: str | None,
    worker_id: str | None,
    metadata: dict[str, Any] | None,
    spans: Sequence[Span],
    returned: Sequence[Span],
) -> Attempt:
    spans, bad = admitted(spans)
    returned, bad_returned = admitted(returned)
    check_metadata(metadata or {})
    given = [*spans, *returned]
    for span in given:
        if owner_of(span) != (rollout_id, attempt_id):
            of = f"attempt {span.attempt_id}, not to {attempt_id}"
            raise ValueError(f"span {span.name!r} belongs to {of}")
    target = None if status is None else AttemptStatus(status)
    now = store.clock()
    state = require_writable(store, rollout_id, attempt_id, "update")
    attempt = state.attempt
    if target is AttemptStatus.PREPARING and attempt.status is not target:
        raise Conflict(f"attempt {attempt_id} cannot go from {attempt.status} back to preparing")
    refuse_late_rewards(store, spans)
    count_bad(store, bad + bad_returned)
    attempt.metadata = {**attempt.metadata, **(metadata or {})}
    _insert_new_spans(store, state, spans, returned)
    alive = bool(given) or target in (None, AttemptStatus.RUNNING)
    if alive and attempt.status is AttemptStatus.UNRESPONSIVE:
        revive(store, state)
    elif alive:
        attempt.status = AttemptStatus.RUNNING
    attempt.worker_id = worker_id or attempt.worker_id
    attempt.last_heartbeat_time = now
    if target in FINAL_STATUSES:
        end_and_move_on(store, state, target, now, reason)
    else:
        attempt.reason = reason or attempt.reason
        save_attempt(store, attempt)
        if alive and state.rollout_status != "running":
            store.db.update(schema.rollouts, {"rollout_id": rollout_id}, status="running")
    return attempt


def _insert_new_spans(
    store: Tables, state: AttemptState, spans: Sequence[Span], returned: Sequence[Span]
) -> None:
    """Number and insert the spans of an attempt, and the rewards that its agent returned."""
    given, a = [*spans, *returned], state.attempt
    if not given:
        return _count_overridden(store, state, returned)
    total = state.arrivals + len(given)
    _assign_numbers(given, range(state.arrivals + 1, total + 1))
    insert_spans(store, spans)
    insert_spans(store, returned, returned=True)
    key = {"rollout_id": a.rollout_id, "sequence_id": a.sequence_id}
    store.db.update(schema.attempts, key, arrivals=total)
    _count_overridden(store, state, returned)


def _count_overridden(store: Tables, state: AttemptState, returned: Sequence[Span]) -> None:
    """Count the emitted rewards that do not count: those for whose name and target there is a returned
    one, and all of an agent that is not trusted beside a judge.
    """
    trusted = state.config.trusted
    if not returned and (trusted or state.attempt.metadata.get(semconv.JUDGED) is not True):
        return
    ids = (state.attempt.rollout_id, state.attempt.attempt_id)
    rows = store.db.all(_EMITTED, rollout_id=ids[0], attempt_id=ids[1])
    had = {reward_target(span) for span in returned}
    n = sum(not trusted or reward_target(span_from_row(row)) in had for row in rows)
    if n:
        store.add_count("refused", OVERRIDDEN, *ids, n)


def _assign_numbers(spans: Sequence[Span], numbers: Sequence[int]) -> list[Span]:
    if len(numbers) != len(spans):
        raise Conflict(f"the request id was already used for another request, of {len(numbers)} spans")
    for span, number in zip(spans, numbers, strict=True):
        span.sequence_id = number
    return list(spans)


# ------------------------------------------------------------------------------------------------------ calls
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


_MOST_ARRIVALS = 2000
"""Spans and calls of an attempt whose index is made again from the table."""


@write
def add_calls(store: Tables, calls: Sequence[Call], fence: int | None) -> None:
    now = store.clock()
    new = [call for call in calls if not _is_stored(store, call)]
    for attempt, group in groupby(new, lambda call: (call.rollout_id, call.attempt_id)):
        part = list(group)
        cached = writable_attempt(store, *attempt, "calls", len(part), fence)
        _insert_calls(store, part, cached.arrivals)
        touch(store, attempt[0], cached, now, len(part))


def _is_stored(store: Tables, call: Call) -> bool:
    rows = store.db.all(_BY_ID, call_id=call.call_id)
    if not rows:
        return False
    (stored,) = calls_of(store, rows)
    if _content(stored) != _content(call):
        of = f"attempt {stored.attempt_id} of {stored.rollout_id}"
        raise Conflict(f"call {call.call_id} exists with other content, in {of}")
    return True


def _insert_calls(store: Tables, calls: Sequence[Call], arrivals: int) -> None:
    """Insert the calls of one attempt, behind its ``arrivals`` spans and calls."""
    rollout_id, attempt_id = calls[0].rollout_id, calls[0].attempt_id
    make = partial(_make_index, store, rollout_id, attempt_id, arrivals)
    index = store.cache.call_index(attempt_id, make)
    try:
        rows = []
        for arrival, call in enumerate(calls, arrivals + 1):
            blob = codec.pack(index.delta(call))
            columns = dict(zip(CALL_FIELDS, columns_of(call), strict=True))
            numbers = dict(zip(_NUMBERS, codec.numbers(call, blob), strict=True))
            rows.append({**columns, "arrival": arrival, "data": blob, **numbers})
        store.db.insert(schema.calls, *rows)
    except BaseException:
        store.cache.drop_call_index(attempt_id)  # it holds calls that are not in the table
        raise


def _make_index(store: Tables, rollout_id: str, attempt_id: str, arrivals: int) -> CallIndex:
    """Make the index of an attempt from the table. That of a long attempt begins anew: reading all of it
    would take longer than the next call's bytes are worth.
    """
    index = CallIndex()
    if 0 < arrivals <= _MOST_ARRIVALS:
        rows = store.db.all(_OF_ATTEMPT, rollout_id=rollout_id, attempt_id=attempt_id)
        for call in calls_of(store, rows):
            index.delta(call)
    return index


def calls_of(store: Tables, rows: Sequence[Row]) -> list[Call]:
    """Return the calls of rows of ``CALL_COLUMNS``, in the order of the rows, each as it was recorded."""
    stored = stored_calls(rows, lambda call_ids: store.db.all(_BY_IDS, ids=json.dumps(call_ids)))
    calls = {call.call_id: call for call in whole_calls(stored)}
    return [calls[row[0]] for row in rows]


def _content(call: Call) -> tuple[Any, ...]:
    """Return the content of a call, at the precision of the store."""
    blob = codec.pack(codec.call_body(call))
    return (*columns_of(call), blob)
