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
from agentlightning.store.sql.attempts import (
    HELD,
    WORKER_LEFT,
    attempt_state,
    end_attempt,
    end_latest,
    set_worker,
    watch_limits,
)
from agentlightning.store.sql.core import CachedAttempt, Tables, write
from agentlightning.store.sql.database import InJson, given
from agentlightning.store.sql.expiry import end_overdue, ensure_timer
from agentlightning.store.sql.rollouts import (
    GET_ROLLOUT,
    ROLLOUT_COLUMNS,
    Pin,
    check_rollout,
    find_rollout,
    get_rollout_by_id,
    insert_rollout,
    pin,
    rollout_from_row,
    set_rollout_status,
    time_ordered_id,
)
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
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


def _lease(
    store: Tables, rollout: Rollout, worker_id: str | None, now: float, attempt_id: str | None = None
) -> AttemptedRollout:
    rollout_id = rollout.rollout_id
    failed = _count_failed(store, rollout_id) if rollout.attempts else 0
    number = rollout.attempts = rollout.attempts + 1
    rollout.status = RolloutStatus.PREPARING
    rollout.end_time = None
    if rollout.resources_id is None:  # there were no resources when it was made
        rollout = msgspec.structs.replace(rollout, **pin(store, None))
    pinned: Pin = {"resources_id": rollout.resources_id, "resources_version": rollout.resources_version}
    store.db.update(_r, {"rollout_id": rollout_id}, status="preparing", attempts=number, **pinned)
    attempt = Attempt(
        attempt_id=attempt_id or time_ordered_id("at"),
        rollout_id=rollout_id,
        sequence_id=number,
        fence=number,
        worker_id=worker_id,
        start_time=now,
        metadata={RESAMPLED: failed} if failed else {},
        **pinned,
    )
    metadata = codec.pack_optional(attempt.metadata)
    row = {**msgspec.structs.asdict(attempt), "status": "preparing", "metadata": metadata, "arrivals": 0}
    store.db.insert(_a, row)
    if worker_id is not None:
        set_worker(
            store, worker_id, "busy", current_rollout_id=rollout_id, current_attempt_id=attempt.attempt_id
        )
    store.cache.put(rollout_id, CachedAttempt(attempt.attempt_id, number, number, 0, running=False))
    watch_limits(store, rollout.config, now)
    return AttemptedRollout(rollout=rollout, attempt=attempt)


def _count_failed(store: Tables, rollout_id: str) -> int:
    """Return the number of attempts that failed themselves, not by an outage, since the last requeue."""
    ends = store.db.all(_FAILED, rollout_id=rollout_id)
    return sum(failure_kind_of_end(status, reason) not in OUTAGE_KINDS for status, reason in ends)


def _dequeue(store: Tables, worker_id: str | None, limit: int, run_id: str | None) -> list[AttemptedRollout]:
    now = store.clock()
    query = _QUEUED if run_id is None else _NEXT_OF
    rows = store.db.all(query, n=limit, run_id=run_id)
    if not rows and store.timer.in_charge and end_overdue(store, now):
        rows = store.db.all(query, n=limit, run_id=run_id)
    return [_lease(store, rollout_from_row(row), worker_id, now) for row in rows]


async def dequeue_many_rollouts(
    store: Tables, worker_id: str | None, limit: int, run_id: str | None, wait: float, request_id: str | None
) -> list[AttemptedRollout]:
    check_count("limit", limit, 1)
    check_seconds("wait", wait)
    take = partial(_dequeue, store, worker_id, limit, run_id)
    return await store.writer.on_writer_loop(lambda: _await_work(store, take, run_id, wait, request_id))


async def _await_work(
    store: Tables, take: Dequeue, run_id: str | None, wait: float, request_id: str | None
) -> list[AttemptedRollout]:
    if not wait:
        return await _dequeue_once(store, take, request_id)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        with store.waiters.work(run_id) as waiter:
            leases = await _dequeue_once(store, take, request_id)
            left = deadline - loop.time()
            if leases or left <= 0 or store.waiters.closing:
                return leases
            ensure_timer(store)
            await waiter.wait(_until_next_look(store, left))


def _until_next_look(store: Tables, left: float | None) -> float | None:
    """Return the seconds to wait for a signal, when ``left`` are left (``None``: any number)."""
    every = store.db.look_seconds
    return every if left is None or (every is not None and every < left) else left


async def _dequeue_once(store: Tables, take: Dequeue, request_id: str | None) -> list[AttemptedRollout]:
    leases: list[AttemptedRollout] = []

    def work() -> list[AttemptedRollout]:
        leases[:] = take()
        return leases

    kind = list[AttemptedRollout]
    try:
        return await store.write_once("dequeue", work, request_id, kind, should_remember=bool)
    except asyncio.CancelledError:
        if leases:  # the caller was cancelled and does not know of this lease: requeue it
            await store.writer.write(lambda: _return_leases(store, leases, request_id))
        raise


def _return_leases(store: Tables, leases: Sequence[AttemptedRollout], request_id: str | None) -> None:
    if request_id is not None:
        store.db.delete(schema.requests, request_id=request_id)  # sent again, it is a new request
    for lease in leases:
        rollout_id, now = lease.rollout.rollout_id, store.clock()
        state = attempt_state(store, rollout_id, lease.attempt.attempt_id)
        if state is not None and state.attempt.status is AttemptStatus.PREPARING:
            end_attempt(store, state.attempt, AttemptStatus.UNRESPONSIVE, now, WORKER_LEFT)
            set_rollout_status(store, rollout_id, state.run_id, RolloutStatus.REQUEUING, now)


@write
def start_rollout(
    store: Tables,
    worker_id: str | None,
    attempt_id: str | None,
    rollout_id: str | None,
    config: RolloutConfig | None,
    metadata: dict[str, Any] | None,
    **fields: Any,
) -> AttemptedRollout:
    rollout = Rollout(
        rollout_id=rollout_id or "", config=config or RolloutConfig(), metadata=metadata or {}, **fields
    )
    check_rollout(rollout)
    if rollout_id and store.db.one(GET_ROLLOUT, rollout_id=rollout_id):
        raise Conflict(f"rollout {rollout_id} exists: start_attempt leases it")
    if attempt_id in RESERVED_IDS or (attempt_id and store.db.one(HELD, attempt_id=attempt_id)):
        raise Conflict(f"attempt_id {attempt_id!r} is taken: choose a fresh one")
    made = insert_rollout(
        store, rollout, pin(store, rollout.resources_id), rollout.config, RolloutStatus.PREPARING
    )
    return _lease(store, made, worker_id, made.start_time, attempt_id)


@write
def start_attempt(store: Tables, rollout_id: str, worker_id: str | None, queued: bool) -> AttemptedRollout:
    store.db.lock_rollouts([rollout_id])
    rollout, now = find_rollout(store, rollout_id), store.clock()
    if rollout.status.final:
        raise Conflict(f"rollout {rollout_id} has {rollout.status}: no further attempt")
    if queued and rollout.status not in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING):
        raise Conflict(f"rollout {rollout_id} is {rollout.status}: another worker has its lease")
    why = "unresponsive: taken over by a later attempt"
    end_latest(store, rollout_id, AttemptStatus.UNRESPONSIVE, now, why)
    return _lease(store, rollout, worker_id, now)


async def wait_for_rollouts(
    store: Tables, rollout_ids: Sequence[str], timeout: float | None
) -> list[Rollout]:
    check_seconds("timeout", timeout)
    return await store.writer.on_writer_loop(lambda: _await_ends(store, list(rollout_ids), timeout))


async def _await_ends(store: Tables, ids: list[str], timeout: float | None) -> list[Rollout]:
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        with store.waiters.ends(ids) as waiter:
            done = await store.writer.read(lambda: _ended(store, ids))
            left = None if deadline is None else deadline - loop.time()
            over = store.waiters.closing or (left is not None and left <= 0)
            if over or len(done) == len(set(ids)):
                return [await get_rollout_by_id(store, i) for i in ids if i in done]
            for rollout_id in done:
                store.waiters.notify_ended(rollout_id)
            if not store.db.read_only:
                ensure_timer(store)
            await waiter.wait(_until_next_look(store, left))


def _ended(store: Tables, ids: Sequence[str]) -> set[str]:
    known = dict(store.db.all(_STATUS, ids=json.dumps(ids)))
    missing = [i for i in ids if i not in known]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise NotFound(f"no rollout {', '.join(missing[:3])}{more}")
    return {i for i, status in known.items() if RolloutStatus(status).final}
