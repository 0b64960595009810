"""Records: the calls, rewards and attempts of rollouts that credit needs, read in a few queries.

Invariant: calls, rewards and spans are in the order in which the store numbered them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, Table, and_, func, or_, select

from agentlightning import semconv
from agentlightning.store.base import NotFound
from agentlightning.store.calls import StoredCall, StoredRecord
from agentlightning.store.pages import record_pages
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import read
from agentlightning.store.sql.queue.attempts import ATTEMPT_COLUMNS, attempt_from_row
from agentlightning.store.sql.queue.rollouts import ROLLOUT_COLUMNS, rollout_from_row
from agentlightning.store.sql.statements import InJson
from agentlightning.store.sql.trace.calls import CALL_COLUMNS, stored_calls
from agentlightning.store.sql.trace.writing import SPAN_COLUMNS, TraceStore, span_from_row
from agentlightning.store.sql.writer import pause
from agentlightning.types import AttemptStatus, EarlierAttempt, Record, Reward, Span
from agentlightning.types.rewards import reward_of

_r, _a, _s, _c = schema.rollouts, schema.attempts, schema.spans, schema.calls
_IN_IDS = InJson(_r.c.rollout_id)
_IN_LATEST = _r.join(_a, and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id == _r.c.attempts))


def _of_latest(table: Table, columns: Sequence[Any]) -> Select[Any]:
    """Select the rows of the latest attempt of each rollout."""
    on = and_(table.c.rollout_id == _a.c.rollout_id, table.c.attempt_id == _a.c.attempt_id)
    return select(*columns).select_from(_IN_LATEST.join(table, on)).where(_IN_IDS)


_ROLLOUTS = select(*ROLLOUT_COLUMNS).where(_IN_IDS)
_ATTEMPTS = select(*ATTEMPT_COLUMNS).select_from(_IN_LATEST).where(_IN_IDS)
_CALLS = _of_latest(_c, CALL_COLUMNS).order_by(_c.c.seq)
_WANTED = or_(_s.c.name == semconv.REWARD_SPAN, _s.c.wire == 1)
_SPANS = _of_latest(_s, SPAN_COLUMNS).where(_WANTED).order_by(_s.c.sequence)
_CALL_COUNT = select(func.count()).where(
    _c.c.rollout_id == _a.c.rollout_id, _c.c.attempt_id == _a.c.attempt_id
)
_EARLIER = (
    select(_a.c.rollout_id, _a.c.attempt_id, _a.c.status, _a.c.reason, _CALL_COUNT.scalar_subquery())
    .join(_r, and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id < _r.c.attempts))
    .where(_IN_IDS)
    .order_by(_a.c.rollout_id, _a.c.sequence_id)
)


class RecordReader(TraceStore):
    """Records for credit."""

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        """Return calls, rewards and wire spans of each rollout's latest attempt, and a summary of each
        earlier attempt, in the order asked for. Other requests go on between two pages of records, unless
        this is a call of a batch.
        """
        found: list[Record] = []
        for page in record_pages(rollout_ids):
            found += [stored.whole() for stored in await self.stored_records(page)]
            await pause()
        return found

    @read
    def stored_records(self, rollout_ids: Sequence[str]) -> list[StoredRecord]:
        """Return the same as :meth:`records`, with calls as they are stored."""
        ids = json.dumps(list(rollout_ids))
        rollouts = {row[0]: rollout_from_row(row) for row in self.db.all(_ROLLOUTS, ids=ids)}
        missing = [i for i in rollout_ids if i not in rollouts]
        if missing:
            raise NotFound(f"no rollout {missing[0]}")
        latest = map(attempt_from_row, self.db.all(_ATTEMPTS, ids=ids))
        attempts = {attempt.rollout_id: attempt for attempt in latest}
        calls: defaultdict[str, list[StoredCall]] = defaultdict(list)
        for call in stored_calls(self.db.all(_CALLS, ids=ids)):
            calls[call.columns["rollout_id"]].append(call)
        rewards: defaultdict[str, list[Reward]] = defaultdict(list)
        wire: defaultdict[str, list[Span]] = defaultdict(list)
        for row in self.db.all(_SPANS, ids=ids):
            span = span_from_row(row)
            if (reward := reward_of(span)) is not None:
                rewards[span.rollout_id].append(reward)
            else:
                wire[span.rollout_id].append(span)
        earlier: defaultdict[str, list[EarlierAttempt]] = defaultdict(list)
        for rollout_id, attempt_id, status, reason, n in self.db.all(_EARLIER, ids=ids):
            before = EarlierAttempt(
                attempt_id=attempt_id, status=AttemptStatus(status), reason=reason, calls=n
            )
            earlier[rollout_id].append(before)
        found = []
        for i in rollout_ids:
            traces: dict[str, Any] = {"rewards": rewards[i], "wire": wire[i], "earlier": earlier[i]}
            record = Record(rollout=rollouts[i], attempt=attempts.get(i), **traces)
            found.append(StoredRecord(record, calls[i]))
        return found
