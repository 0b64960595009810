"""Writing of spans in order of arrival, of the rewards that a runner reports, and of an attempt's end.

Invariant: a span or call is stored only while its attempt may write (see
:mod:`agentlightning.store.sqlite.queue.attempts`); the spans and the status of one ``update_attempt`` are
stored together or not at all. Only ``update_attempt``, which no attempt's key opens, marks a reward as
*returned*; after it no emitted reward is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import bindparam, select, text

from agentlightning import semconv
from agentlightning.store import codec
from agentlightning.store.base import Conflict
from agentlightning.store.sqlite.core import StoreRefusal
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given, insert_sql
from agentlightning.store.sqlite.queue.attempts import FINAL_STATUSES, AttemptState
from agentlightning.store.sqlite.trace.calls import CallStore
from agentlightning.types import Attempt, AttemptStatus, Span
from agentlightning.types.rewards import reward_target

_s = schema.spans
_INSERT_SPAN = insert_sql(_s)
SPAN_COLUMNS = (_s.c.rollout_id, _s.c.attempt_id, _s.c.sequence, _s.c.name, _s.c.data, _s.c.returned)
_IN_ATTEMPT = given(_s.c.rollout_id, _s.c.attempt_id)
_HAS_RETURNED = compile_sql(select(_s.c.seq).where(*_IN_ATTEMPT, text("returned = 1")).limit(1)).indexed_by(
    "spans", "spans_returned"
)
_EMITTED = compile_sql(
    select(*SPAN_COLUMNS).where(*_IN_ATTEMPT, _s.c.name == semconv.REWARD_SPAN, text("returned = 0"))
)
OVERRIDDEN = "reward-beside-the-returned"
"""Reason that an emitted reward does not count: the agent returned one of the same name and target."""
_NUMBER_TAKEN = compile_sql(
    select(_s.c.seq)
    .where(
        given(_s.c.rollout_id, _s.c.attempt_id),
        _s.c.sequence == bindparam("number"),
    )
    .limit(1)
)


def span_from_row(row: Sequence[Any]) -> Span:
    """The span of a row of ``SPAN_COLUMNS``."""
    known = {"rollout_id": row[0], "attempt_id": row[1], "sequence_id": row[2], "name": row[3]}
    return codec.unpack_span(row[4], **known, returned=bool(row[5]))


def _attempt_key(span: Span) -> tuple[str, str]:
    return span.rollout_id, span.attempt_id


class TraceStore(CallStore):
    """Spans, model calls, and the end of an attempt."""

    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span:
        """Store one span; returned with its ``sequence_id``."""
        return (await self.add_many_spans([span], request_id=request_id))[0]

    async def add_many_spans(
        self, spans: Sequence[Span], *, numbered: bool = False, request_id: str | None = None
    ) -> list[Span]:
        """Store spans of one or several attempts, all or none. Returns them with their ``sequence_id``.
        Rewards among them are *emitted* ones: they are refused once returned rewards are on record.

        ``numbered``: they keep their numbers, which ``get_next_span_sequence_id`` reserved.
        """
        packed = [codec.pack_span(s) for s in spans]

        def work() -> list[Span]:
            now, start = self.clock(), 0
            for owner, group in groupby(spans, _attempt_key):
                part = list(group)
                cached = self._writable_attempt(*owner, "spans", len(part))
                self._refuse_late_rewards(part)
                if numbered:
                    self._check_numbers(part, cached.arrivals)
                else:
                    _assign_numbers(part, range(cached.arrivals + 1, cached.arrivals + 1 + len(part)))
                self._insert_spans(part, packed[start : start + len(part)])
                self._touch(owner[0], cached, now, 0 if numbered else len(part))
                start += len(part)
            return list(spans)

        return await self._write(
            "add_spans",
            work,
            request_id,
            list[int],
            to_answer=lambda stored: [s.sequence_id for s in stored],
            from_answer=lambda numbers: _assign_numbers(spans, numbers),
        )

    def _check_numbers(self, spans: Sequence[Span], arrivals: int) -> None:
        numbers = [s.sequence_id for s in spans]
        for span, number in zip(spans, numbers, strict=True):
            if not 1 <= number <= arrivals:
                raise ValueError(
                    f"span {span.name!r} bears the number {number}, which was not given out in its attempt: "
                    "get_next_span_sequence_id gives one"
                )
            rollout_id, attempt_id = _attempt_key(span)
            taken = self.db.one(_NUMBER_TAKEN, rollout_id=rollout_id, attempt_id=attempt_id, number=number)
            if taken or numbers.count(number) > 1:
                raise Conflict(f"attempt {attempt_id} has a span with the number {number}")

    def _refuse_late_rewards(self, spans: Sequence[Span]) -> None:
        n = sum(span.name == semconv.REWARD_SPAN for span in spans)
        if not n:
            return
        rollout_id, attempt_id = _attempt_key(spans[0])
        if self.db.one(_HAS_RETURNED, rollout_id=rollout_id, attempt_id=attempt_id) is not None:
            raise StoreRefusal(
                f"attempt {attempt_id} of {rollout_id}: a reward is refused, what the agent returned is on "
                "record already",
                "rewards-after-the-returned",
                rollout_id,
                attempt_id,
                n,
            )

    def _insert_spans(self, spans: Sequence[Span], packed: Sequence[bytes], returned: bool = False) -> None:
        for span in spans:
            span.returned = returned
        self.db.many(
            _INSERT_SPAN,
            (
                {
                    "rollout_id": s.rollout_id,
                    "attempt_id": s.attempt_id,
                    "sequence": s.sequence_id,
                    "name": s.name,
                    "wire": int(s.attributes.get(semconv.LAYER) == "wire"),
                    "data": blob,
                    "returned": int(returned),
                }
                for s, blob in zip(spans, packed, strict=True)
            ),
        )

    async def update_attempt(
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

        ``returned``: rewards that the agent returned, as its runner reports them. They count before emitted
        ones, unless the rollout's configuration has ``emitted_overrides_returned``.
        """
        _require_same_attempt([*spans, *returned], rollout_id, attempt_id)
        packed, of_runner = [codec.pack_span(s) for s in spans], [codec.pack_span(s) for s in returned]
        target = None if status is None else AttemptStatus(status)

        def work() -> Attempt:
            now = self.clock()
            state = self._require_writable(rollout_id, attempt_id, "update")
            attempt = state.attempt
            if target is AttemptStatus.PREPARING and attempt.status is not target:
                raise Conflict(f"attempt {attempt_id} cannot go from {attempt.status} back to preparing")
            given = [*spans, *returned]
            _assign_numbers(given, range(state.arrivals + 1, state.arrivals + 1 + len(given)))
            if spans:
                self._refuse_late_rewards(spans)
                self._insert_spans(spans, packed)
            if returned:
                self._insert_spans(returned, of_runner, returned=True)
                self._count_overridden(state, returned)
            alive = bool(given) or target in (None, AttemptStatus.RUNNING)
            if alive and attempt.status is AttemptStatus.UNRESPONSIVE:
                self._revive(state)
            elif alive:
                attempt.status = AttemptStatus.RUNNING
            attempt.worker_id = worker_id or attempt.worker_id
            attempt.metadata = {**attempt.metadata, **(metadata or {})}
            attempt.last_heartbeat_time = now
            if target in FINAL_STATUSES:
                self._end_and_move_on(state, target, now, reason, len(given))
            else:
                attempt.reason = reason or attempt.reason
                self._save(attempt, len(given))
                if alive and state.rollout_status != "running":
                    self._set_running(rollout_id)
            return attempt

        return await self._write("update_attempt", work, request_id, Attempt)

    def _count_overridden(self, state: AttemptState, returned: Sequence[Span]) -> None:
        """Count emitted rewards that have a returned one of the same name and target beside them."""
        if state.config.emitted_overrides_returned:
            return
        ids = (state.attempt.rollout_id, state.attempt.attempt_id)
        rows = self.db.all(_EMITTED, rollout_id=ids[0], attempt_id=ids[1])
        had = {reward_target(span) for span in returned}
        n = sum(reward_target(span_from_row(row)) in had for row in rows)
        if n:
            self._count("refused", OVERRIDDEN, *ids, n)


def _require_same_attempt(spans: Sequence[Span], rollout_id: str, attempt_id: str) -> None:
    for span in spans:
        if _attempt_key(span) != (rollout_id, attempt_id):
            raise ValueError(f"span {span.name!r} belongs to attempt {span.attempt_id}, not to {attempt_id}")


def _assign_numbers(spans: Sequence[Span], numbers: Iterable[int]) -> list[Span]:
    for span, number in zip(spans, numbers, strict=True):
        span.sequence_id = number
    return list(spans)
