"""Records: the calls, rewards and attempts of rollouts that credit needs, read in a few queries.

Invariant: calls, rewards and spans are in the order in which the store numbered them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, and_, func, or_, select

from agentlightning import semconv
from agentlightning.store.base import NotFound
from agentlightning.store.calls import StoredCall, StoredRecord
from agentlightning.store.pages import record_pages
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import chunks, compile_sql
from agentlightning.store.sqlite.queue.attempts import ATTEMPT_COLUMNS, attempt_from_row
from agentlightning.store.sqlite.queue.rollouts import ROLLOUT_COLUMNS, rollout_from_row
from agentlightning.store.sqlite.trace.calls import CALL_COLUMNS, stored_calls
from agentlightning.store.sqlite.trace.writing import SPAN_COLUMNS, TraceStore, span_from_row
from agentlightning.types import Attempt, AttemptStatus, EarlierAttempt, Record, Reward, Rollout, Span
from agentlightning.types.rewards import reward_of

_r, _a, _s, _c = schema.rollouts, schema.attempts, schema.spans, schema.calls
_LATEST = and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id == _r.c.attempts)
_CALL_COUNT = select(func.count()).where(
    _c.c.rollout_id == _a.c.rollout_id, _c.c.attempt_id == _a.c.attempt_id
)
_EARLIER = (
    select(_a.c.rollout_id, _a.c.attempt_id, _a.c.status, _a.c.reason, _CALL_COUNT.scalar_subquery())
    .join(_r, and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id < _r.c.attempts))
    .order_by(_a.c.rollout_id, _a.c.sequence_id)
)
_WANTED = or_(_s.c.name == semconv.REWARD_SPAN, _s.c.wire == 1)


class RecordReader(TraceStore):
    """Records for credit."""

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        """Calls, rewards and wire spans of each rollout's latest attempt, and a summary of each earlier
        attempt, in the order asked for. They are read in pages: other requests go on between two.
        """
        found: list[Record] = []
        for page in record_pages(rollout_ids):
            found += [stored.whole() for stored in await self.stored_records(page)]
            await asyncio.sleep(0)
        return found

    async def stored_records(self, rollout_ids: Sequence[str]) -> list[StoredRecord]:
        """As :meth:`records`, with calls as they are stored."""
        return await self.writer.read(
            lambda: [r for part in chunks(rollout_ids) for r in self._stored_records(part)]
        )

    def _stored_records(self, ids: Sequence[str]) -> list[StoredRecord]:
        rollouts: dict[str, Rollout] = {}
        for row in self.db.all(compile_sql(select(*ROLLOUT_COLUMNS).where(_r.c.rollout_id.in_(ids)))):
            rollouts[row[0]] = rollout_from_row(row)
        missing = [i for i in ids if i not in rollouts]
        if missing:
            raise NotFound(f"no rollout {missing[0]}")
        attempts: dict[str, Attempt] = {}
        for row in self.db.all(self._select_of_latest(ids, ATTEMPT_COLUMNS, None)):
            attempts[row[1]] = attempt_from_row(row)
        calls: defaultdict[str, list[StoredCall]] = defaultdict(list)
        for call in stored_calls(self.db.all(self._select_of_latest(ids, CALL_COLUMNS, _c))):
            calls[call.columns["rollout_id"]].append(call)
        rewards: defaultdict[str, list[Reward]] = defaultdict(list)
        wire: defaultdict[str, list[Span]] = defaultdict(list)
        for row in self.db.all(self._select_of_latest(ids, SPAN_COLUMNS, _s)):
            span = span_from_row(row)
            if (reward := reward_of(span)) is not None:
                rewards[span.rollout_id].append(reward)
            else:
                wire[span.rollout_id].append(span)
        earlier = self._earlier([i for i in ids if rollouts[i].attempts > 1])
        return [
            StoredRecord(
                Record(
                    rollout=rollouts[i],
                    attempt=attempts.get(i),
                    rewards=rewards[i],
                    wire=wire[i],
                    earlier=earlier[i],
                ),
                calls[i],
            )
            for i in ids
        ]

    def _earlier(self, ids: Sequence[str]) -> defaultdict[str, list[EarlierAttempt]]:
        """The attempts before the latest, first to last, each with the number of its calls."""
        found: defaultdict[str, list[EarlierAttempt]] = defaultdict(list)
        if ids:
            for row in self.db.all(compile_sql(_EARLIER.where(_r.c.rollout_id.in_(ids)))):
                rollout_id, attempt_id, status, reason, calls = row
                found[rollout_id].append(
                    EarlierAttempt(
                        attempt_id=attempt_id, status=AttemptStatus(status), reason=reason, calls=calls
                    )
                )
        return found

    def _select_of_latest(self, ids: Sequence[str], columns: Sequence[Any], table: Any) -> Any:
        query: Select[Any] = (
            select(*columns).select_from(_r).join(_a, _LATEST).where(_r.c.rollout_id.in_(ids))
        )
        if table is not None:
            on = and_(table.c.rollout_id == _a.c.rollout_id, table.c.attempt_id == _a.c.attempt_id)
            query = query.join(table, on).order_by(table.c.sequence if table is _s else table.c.seq)
        return compile_sql(query.where(_WANTED) if table is _s else query)
