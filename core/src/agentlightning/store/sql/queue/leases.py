"""Leases: workers take rollouts from the queue, or a named one past it; others wait for rollouts to end.

A lease makes an attempt with the rollout's next fence. Invariant: a queued rollout is leased to exactly one
worker, the oldest first. Nothing polls, except where no signal may come: readers of a file that another
process writes, and users of a database that many write.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import bindparam, select, text

from agentlightning.semconv import RESAMPLED
from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import RESERVED_IDS, check_count, check_seconds
from agentlightning.store.sql import schema
from agentlightning.store.sql.cache import CachedAttempt
from agentlightning.store.sql.core import write
from agentlightning.store.sql.queue.attempts import WORKER_LEFT
from agentlightning.store.sql.queue.expiry import HELD, ExpiryStore
from agentlightning.store.sql.queue.rollouts import (
    ROLLOUT_COLUMNS,
    Pin,
    check_rollout,
    rollout_from_row,
    time_ordered_id,
)
from agentlightning.store.sql.statements import InJson, given
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Mode,
    Rollout,
    RolloutConfig,
    RolloutStatus,
)
from agentlightning.types.failure import OUTAGE_KINDS, failure_kind_of_end

_a, _r = schema.attempts, schema.rollouts
_QUEUED = (
    select(*ROLLOUT_COLUMNS)
    .where(text(schema.QUEUED))
    .order_by(_r.c.seq)
    .limit(bindparam("n"))
    .with_for_update(skip_locked=True)  # says nothing in SQLite, where one process writes
)
_NEXT = _QUEUED
_NEXT_OF = _QUEUED.where(given(_r.c.run_id)).with_hint(_r, "INDEXED BY rollouts_queue_run", "sqlite")
_FAILED = (
    select(_a.c.status, _a.c.reason)
    .join(_r, _r.c.rollout_id == _a.c.rollout_id)
    .where(
        given(_a.c.rollout_id),
        _a.c.sequence_id > _r.c.forgiven,
        text("attempts.status IN ('failed', 'timeout')"),
    )
)
_STATUS = select(_r.c.rollout_id, _r.c.status).where(InJson(_r.c.rollout_id))
Dequeue = Callable[[], list[AttemptedRollout]]


class LeaseStore(ExpiryStore):
    """The queue."""

    def _lease(
        self, rollout: Rollout, worker_id: str | None, now: float, attempt_id: str | None = None
    ) -> AttemptedRollout:
        rollout_id = rollout.rollout_id
        failed = self._count_failed(rollout_id) if rollout.attempts else 0
        number = rollout.attempts = rollout.attempts + 1
        rollout.status = RolloutStatus.PREPARING
        rollout.end_time = None
        if rollout.resources_id is None:  # there were no resources when it was made
            rollout = msgspec.structs.replace(rollout, **self._pin(None))
        pin: Pin = {"resources_id": rollout.resources_id, "resources_version": rollout.resources_version}
        self.db.update(_r, {"rollout_id": rollout_id}, status="preparing", attempts=number, **pin)
        attempt = Attempt(
            attempt_id=attempt_id or time_ordered_id("at"),
            rollout_id=rollout_id,
            sequence_id=number,
            fence=number,
            worker_id=worker_id,
            start_time=now,
            metadata={RESAMPLED: failed} if failed else {},
            **pin,
        )
        metadata = codec.pack_optional(attempt.metadata)
        row = {**msgspec.structs.asdict(attempt), "status": "preparing", "metadata": metadata, "arrivals": 0}
        self.db.insert(_a, row)
        if worker_id is not None:
            self._set_worker(
                worker_id,
                "busy",
                current_rollout_id=rollout_id,
                current_attempt_id=attempt.attempt_id,
            )
        self.cache.put(rollout_id, CachedAttempt(attempt.attempt_id, number, number, 0, running=False))
        self._watch_limits(rollout.config, now)
        return AttemptedRollout(rollout=rollout, attempt=attempt)

    def _count_failed(self, rollout_id: str) -> int:
        """Return the number of attempts that failed themselves, not by an outage, since the last requeue."""
        ends = self.db.all(_FAILED, rollout_id=rollout_id)
        return sum(failure_kind_of_end(status, reason) not in OUTAGE_KINDS for status, reason in ends)

    def _dequeue(self, worker_id: str | None, limit: int, run_id: str | None) -> list[AttemptedRollout]:
        now = self.clock()
        query = _NEXT if run_id is None else _NEXT_OF
        rows = self.db.all(query, n=limit, run_id=run_id)
        if not rows and self._keeps_time() and self._end_overdue(now):
            rows = self.db.all(query, n=limit, run_id=run_id)
        return [self._lease(rollout_from_row(row), worker_id, now) for row in rows]

    async def dequeue_many_rollouts(
        self,
        worker_id: str | None = None,
        limit: int = 1,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        """Lease up to ``limit`` queued rollouts; wait up to ``wait`` seconds for the first."""
        check_count("limit", limit, 1)
        check_seconds("wait", wait)
        take = partial(self._dequeue, worker_id, limit, run_id)
        return await self.writer.on_writer_loop(lambda: self._await_work(take, run_id, wait, request_id))

    async def _await_work(
        self, take: Dequeue, run_id: str | None, wait: float, request_id: str | None
    ) -> list[AttemptedRollout]:
        if not wait:
            return await self._dequeue_once(take, request_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            with self.waiters.work(run_id) as waiter:
                leases = await self._dequeue_once(take, request_id)
                left = deadline - loop.time()
                if leases or left <= 0 or self.waiters.closing:
                    return leases
                self._ensure_timer()
                await waiter.wait(self._until_next_look(left))

    def _until_next_look(self, left: float | None) -> float | None:
        """Return the seconds to wait for a signal, when ``left`` are left (``None``: any number)."""
        every = self.db.look_seconds
        return every if left is None or (every is not None and every < left) else left

    async def _dequeue_once(self, take: Dequeue, request_id: str | None) -> list[AttemptedRollout]:
        leases: list[AttemptedRollout] = []

        def work() -> list[AttemptedRollout]:
            leases[:] = take()
            return leases

        kind = list[AttemptedRollout]
        try:
            return await self._write("dequeue", work, request_id, kind, should_remember=bool)
        except asyncio.CancelledError:
            if leases:  # the caller was cancelled and does not know of this lease: requeue it
                await self.writer.write(lambda: self._return_leases(leases, request_id))
            raise

    def _return_leases(self, leases: Sequence[AttemptedRollout], request_id: str | None) -> None:
        if request_id is not None:
            self.db.delete(schema.requests, request_id=request_id)  # sent again, it is a new request
        for lease in leases:
            rollout_id, now = lease.rollout.rollout_id, self.clock()
            state = self._state(rollout_id, lease.attempt.attempt_id)
            if state is not None and state.attempt.status is AttemptStatus.PREPARING:
                self._end_attempt(state.attempt, AttemptStatus.UNRESPONSIVE, now, WORKER_LEFT)
                self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.REQUEUING, now)

    @write
    def start_rollout(
        self,
        input: Any,
        mode: Mode = "train",
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        worker_id: str | None = None,
        rollout_id: str | None = None,
        run_id: str | None = None,
        group_id: str | None = None,
        attempt_id: str | None = None,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        """Make a rollout and lease it at once, past the queue. A ``rollout_id`` that exists: Conflict.
        ``attempt_id``: a fresh id, so that one batch can write what the attempt did.
        """
        rollout = Rollout(
            rollout_id=rollout_id or "",
            input=input,
            mode=mode,
            run_id=run_id,
            group_id=group_id,
            resources_id=resources_id,
            config=config or RolloutConfig(),
            metadata=metadata or {},
        )
        check_rollout(rollout)
        if rollout_id and self._known(rollout_id):
            raise Conflict(f"rollout {rollout_id} exists: start_attempt leases it")
        if attempt_id in RESERVED_IDS or (attempt_id and self.db.one(HELD, attempt_id=attempt_id)):
            raise Conflict(f"attempt_id {attempt_id!r} is taken: choose a fresh one")
        made = self._insert(rollout, self._pin(resources_id), rollout.config, RolloutStatus.PREPARING)
        return self._lease(made, worker_id, made.start_time, attempt_id)

    @write
    def start_attempt(
        self,
        rollout_id: str,
        *,
        worker_id: str | None = None,
        queued: bool = False,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        """Lease this rollout, past the queue. An attempt that still runs is fenced; with ``queued``, a
        rollout that is not in the queue is a :class:`Conflict` instead.
        """
        self.db.lock_rollouts([rollout_id])
        rollout, now = self._rollout(rollout_id), self.clock()
        if rollout.status.final:
            raise Conflict(f"rollout {rollout_id} has {rollout.status}: no further attempt")
        if queued and rollout.status not in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING):
            raise Conflict(f"rollout {rollout_id} is {rollout.status}: another worker has its lease")
        why = "unresponsive: taken over by a later attempt"
        self._end_latest(rollout_id, AttemptStatus.UNRESPONSIVE, now, why)
        return self._lease(rollout, worker_id, now)

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all have ended, or ``timeout`` seconds. Return the ended ones in the order asked for."""
        check_seconds("timeout", timeout)
        return await self.writer.on_writer_loop(lambda: self._await_ends(list(rollout_ids), timeout))

    async def _await_ends(self, ids: list[str], timeout: float | None) -> list[Rollout]:
        if timeout == 0:
            done = await self.writer.read(lambda: self._ended(ids))
            return [await self.get_rollout_by_id(i) for i in ids if i in done]
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self.waiters.ends(ids) as waiter:
                done = await self.writer.read(lambda: self._ended(ids))
                left = None if deadline is None else deadline - loop.time()
                over = self.waiters.closing or (left is not None and left <= 0)
                if over or len(done) == len(set(ids)):
                    return [await self.get_rollout_by_id(i) for i in ids if i in done]
                for rollout_id in done:
                    self.waiters.notify_ended(rollout_id)
                if not self.db.read_only:
                    self._ensure_timer()
                await waiter.wait(self._until_next_look(left))

    def _ended(self, ids: Sequence[str]) -> set[str]:
        known = dict(self.db.all(_STATUS, ids=json.dumps(ids)))
        missing = [i for i in ids if i not in known]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise NotFound(f"no rollout {', '.join(missing[:3])}{more}")
        return {i for i, status in known.items() if RolloutStatus(status).final}
