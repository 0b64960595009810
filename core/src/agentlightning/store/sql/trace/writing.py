"""Writing of spans in order of arrival, of the rewards that a runner reports, and of an attempt's end.

Invariants: a span or call is stored only while its attempt may write (see
:mod:`agentlightning.store.sql.queue.attempts`). Within an attempt each number is given once: to a span, to
a call, or to a caller that asked for one. The spans and the status of one ``update_attempt`` are stored
together or not at all. Only ``update_attempt``, which no attempt's key opens, marks a reward as *returned*;
later emitted rewards are refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import select, text

from agentlightning import semconv
from agentlightning.capture.records import BadRecord, quarantine, validated
from agentlightning.store import codec
from agentlightning.store.base import Conflict
from agentlightning.store.bounds import check_metadata
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import StoreRefusal, write
from agentlightning.store.sql.queue.attempts import FINAL_STATUSES, AttemptState
from agentlightning.store.sql.statements import given
from agentlightning.store.sql.trace.calls import CallStore
from agentlightning.store.sql.writer import Touched
from agentlightning.types import Attempt, AttemptStatus, Span
from agentlightning.types.rewards import reward_of, reward_target

_s = schema.spans
SPAN_COLUMNS = (_s.c.rollout_id, _s.c.attempt_id, _s.c.sequence, _s.c.name, _s.c.data, _s.c.returned)
_IN_ATTEMPT = given(_s.c.rollout_id, _s.c.attempt_id)
_HAS_RETURNED = select(_s.c.seq).where(_IN_ATTEMPT, text("returned = 1")).limit(1)
_HAS_RETURNED = _HAS_RETURNED.with_hint(_s, "INDEXED BY spans_returned", "sqlite")
_EMITTED = select(*SPAN_COLUMNS).where(_IN_ATTEMPT, _s.c.name == semconv.REWARD_SPAN, text("returned = 0"))
_HAS_NUMBER = select(_s.c.seq).where(_IN_ATTEMPT, given(_s.c.sequence)).limit(1)
OVERRIDDEN = "reward-beside-the-returned"
"""Reason that an emitted reward does not count: the agent returned one of the same name and target."""


BAD_SPAN = "bad-record"
"""Reason of spans that are no valid records: they are kept as ``agentlightning.bad_record``."""
BadCounts = Counter[tuple[str, str]]
"""Rollout id and attempt id → spans that are no valid records."""


def _admitted(spans: Sequence[Span]) -> tuple[list[Span], BadCounts]:
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
                kept = quarantine(span, error, *_attempt_key(span))
                kept.sequence_id = span.sequence_id
                bad[_attempt_key(span)] += 1
        found.append(kept)
    return found, bad


def span_from_row(row: Sequence[Any]) -> Span:
    """Return the span of a row of ``SPAN_COLUMNS``."""
    known = {"rollout_id": row[0], "attempt_id": row[1], "sequence_id": row[2], "name": row[3]}
    try:
        return codec.unpack_span(row[4], **known, returned=bool(row[5]))
    except ValueError as error:  # an earlier version took it
        return Span(**{**known, "name": semconv.BAD_RECORD_SPAN}, status="error", status_message=str(error))


def _attempt_key(span: Span) -> tuple[str, str]:
    return span.rollout_id, span.attempt_id


class TraceStore(CallStore):
    """Spans, model calls, and the end of an attempt."""

    async def add_many_spans(
        self, spans: Sequence[Span], *, numbered: bool = False, request_id: str | None = None
    ) -> list[Span]:
        """Store spans of one or several attempts, all or none. Return them with their ``sequence_id``.

        Rewards among them are *emitted* ones: they are refused once returned rewards are on record.

        ``numbered``: they keep their numbers, which ``get_next_span_sequence_id`` reserved. A span that is no
        valid record is kept as ``agentlightning.bad_record``, with the reason, and counted.
        """
        spans, bad = _admitted(spans)
        return await self._write(
            "add_spans",
            lambda: self._add_spans(spans, numbered, bad),
            request_id,
            list[int],
            to_answer=lambda stored: [s.sequence_id for s in stored],
            from_answer=lambda numbers: _assign_numbers(spans, numbers),
            touched=lambda: Touched.by({"spans": spans}),
        )

    def _add_spans(self, spans: Sequence[Span], numbered: bool, bad: BadCounts) -> list[Span]:
        now = self.clock()
        self._count_bad(bad)
        for owner, group in groupby(spans, _attempt_key):
            part = list(group)
            cached = self._writable_attempt(*owner, "spans", len(part))
            self._refuse_late_rewards(part)
            if numbered:
                self._check_numbers(part, cached.arrivals)
            else:
                _assign_numbers(part, range(cached.arrivals + 1, cached.arrivals + 1 + len(part)))
            self._insert_spans(part)
            self._touch(owner[0], cached, now, 0 if numbered else len(part))
        return list(spans)

    def _count_bad(self, bad: BadCounts) -> None:
        for owner, n in bad.items():
            self._count("refused", BAD_SPAN, *owner, n)

    def _check_numbers(self, spans: Sequence[Span], arrivals: int) -> None:
        numbers = [s.sequence_id for s in spans]
        for span, number in zip(spans, numbers, strict=True):
            if not 1 <= number <= arrivals:
                raise ValueError(
                    f"span {span.name!r} bears the number {number}, which its attempt did not give out: "
                    "get_next_span_sequence_id gives one"
                )
            rollout_id, attempt_id = _attempt_key(span)
            taken = self.db.one(_HAS_NUMBER, rollout_id=rollout_id, attempt_id=attempt_id, sequence=number)
            if taken or numbers.count(number) > 1:
                raise Conflict(f"attempt {attempt_id} has a span with the number {number}")

    def _refuse_late_rewards(self, spans: Sequence[Span]) -> None:
        n = sum(span.name == semconv.REWARD_SPAN for span in spans)
        if not n:
            return
        rollout_id, attempt_id = _attempt_key(spans[0])
        if self.db.one(_HAS_RETURNED, rollout_id=rollout_id, attempt_id=attempt_id):
            message = (
                f"attempt {attempt_id} of {rollout_id}: a reward is refused, what the agent returned is on "
                "record already"
            )
            raise StoreRefusal(message, "rewards-after-the-returned", rollout_id, attempt_id, n)

    def _insert_spans(self, spans: Sequence[Span], returned: bool = False) -> None:
        rows = []
        for span in spans:
            span.returned = returned and span.name == semconv.REWARD_SPAN
            row = {
                "rollout_id": span.rollout_id,
                "attempt_id": span.attempt_id,
                "sequence": span.sequence_id,
                "name": span.name,
                "wire": int(span.attributes.get(semconv.LAYER) == "wire"),
                "data": codec.pack_span(span),
                "returned": int(span.returned),
            }
            rows.append(row)
        self.db.insert(_s, *rows)

    @write
    def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | None = None,
        *,
        reason: str | None = None,
        worker_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        spans: Sequence[Span] = (),
        returned: Sequence[Span] = (),
        request_id: str | None = None,
    ) -> Attempt:
        """Store the attempt's spans and its new status in one transaction. Metadata is merged.

        ``returned``: rewards that the agent or a judge returned, as the runner reports them. They count
        before emitted ones, which do not count beside them at all where the agent is not trusted.
        """
        spans, bad = _admitted(spans)
        returned, bad_returned = _admitted(returned)
        check_metadata(metadata or {})
        given = [*spans, *returned]
        for span in given:
            if _attempt_key(span) != (rollout_id, attempt_id):
                of = f"attempt {span.attempt_id}, not to {attempt_id}"
                raise ValueError(f"span {span.name!r} belongs to {of}")
        target = None if status is None else AttemptStatus(status)
        now = self.clock()
        state = self._require_writable(rollout_id, attempt_id, "update")
        attempt = state.attempt
        if target is AttemptStatus.PREPARING and attempt.status is not target:
            raise Conflict(f"attempt {attempt_id} cannot go from {attempt.status} back to preparing")
        self._refuse_late_rewards(spans)
        self._count_bad(bad + bad_returned)
        attempt.metadata = {**attempt.metadata, **(metadata or {})}
        self._insert_new_spans(state, spans, returned)
        alive = bool(given) or target in (None, AttemptStatus.RUNNING)
        if alive and attempt.status is AttemptStatus.UNRESPONSIVE:
            self._revive(state)
        elif alive:
            attempt.status = AttemptStatus.RUNNING
        attempt.worker_id = worker_id or attempt.worker_id
        attempt.last_heartbeat_time = now
        if target in FINAL_STATUSES:
            self._end_and_move_on(state, target, now, reason)
        else:
            attempt.reason = reason or attempt.reason
            self._save(attempt)
            if alive and state.rollout_status != "running":
                self.db.update(schema.rollouts, {"rollout_id": rollout_id}, status="running")
        return attempt

    def _insert_new_spans(self, state: AttemptState, spans: Sequence[Span], returned: Sequence[Span]) -> None:
        """Number and insert the spans of an attempt, and the rewards that its agent returned."""
        given, a = [*spans, *returned], state.attempt
        if not given:
            return self._count_overridden(state, returned)
        total = state.arrivals + len(given)
        _assign_numbers(given, range(state.arrivals + 1, total + 1))
        self._insert_spans(spans)
        self._insert_spans(returned, returned=True)
        key = {"rollout_id": a.rollout_id, "sequence_id": a.sequence_id}
        self.db.update(schema.attempts, key, arrivals=total)
        self._count_overridden(state, returned)

    def _count_overridden(self, state: AttemptState, returned: Sequence[Span]) -> None:
        """Count the emitted rewards that do not count: those for whose name and target there is a returned
        one, and all of an agent that is not trusted beside a judge.
        """
        trusted = state.config.trusted
        if not returned and (trusted or state.attempt.metadata.get(semconv.JUDGED) is not True):
            return
        ids = (state.attempt.rollout_id, state.attempt.attempt_id)
        rows = self.db.all(_EMITTED, rollout_id=ids[0], attempt_id=ids[1])
        had = {reward_target(span) for span in returned}
        n = sum(not trusted or reward_target(span_from_row(row)) in had for row in rows)
        if n:
            self._count("refused", OVERRIDDEN, *ids, n)

    @write
    def get_many_span_sequence_ids(
        self, attempts: Sequence[tuple[str, str]], *, request_id: str | None = None
    ) -> list[int]:
        """Reserve a sequence number for each ``(rollout_id, attempt_id)``, which may repeat."""
        now = self.clock()
        found: list[int] = []
        for rollout_id, attempt_id in attempts:
            cached = self._writable_attempt(rollout_id, attempt_id, "numbers")
            self._touch(rollout_id, cached, now, 1)
            found.append(cached.arrivals)
        return found


def _assign_numbers(spans: Sequence[Span], numbers: Iterable[int]) -> list[Span]:
    for span, number in zip(spans, numbers, strict=True):
        span.sequence_id = number
    return list(spans)
