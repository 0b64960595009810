"""Attempts: which of them may write, their end, the next status of their rollout; and the workers that run
them.

A rollout goes queuing → preparing → running → final. An attempt that failed, timed out or fell silent sends
its rollout to requeuing if the configuration allows, else to failed.

Invariants: only the latest attempt of a rollout can write, and only until it has ended; every late write is
refused and counted. An unresponsive attempt whose rollout is not leased again yet is revived by a write.
A requeued rollout starts afresh: its attempts so far stay on record, but may not write and do not count
against ``max_attempts`` (column ``forgiven``: the number of the last of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, select, text, update

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_metadata
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import CachedAttempt, StoreRefusal, Tables, read, write
from agentlightning.store.sql.database import given
from agentlightning.store.sql.rollouts import (
    check_rollout,
    config_columns,
    find_rollout,
    set_rollout_status,
    unpack_config,
    unpack_metadata,
)
from agentlightning.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from agentlightning.types.failure import failure_kind

WORKER_LEFT = "unresponsive: the worker left before it had the lease"
"""Reason of an attempt that no worker began: it does not count against ``max_attempts``."""
FINAL_STATUSES = set(AttemptStatus) - {AttemptStatus.PREPARING, AttemptStatus.RUNNING}
_a, _r = schema.attempts, schema.rollouts
ATTEMPT_COLUMNS = [c for c in _a.c if c.name != "arrivals"]
_NAMES = [c.name for c in ATTEMPT_COLUMNS]
_OF_ROLLOUT = select(*ATTEMPT_COLUMNS).where(given(_a.c.rollout_id))
_ALL_OF = _OF_ROLLOUT.order_by(_a.c.sequence_id)
_LATEST_OF = _OF_ROLLOUT.order_by(_a.c.sequence_id.desc()).limit(1)
_OF_ITS_ROLLOUT = (_r.c.status, _r.c.attempts, _r.c.run_id, _r.c.forgiven, _r.c.config)
_STATE = (
    select(*ATTEMPT_COLUMNS, _a.c.arrivals, *_OF_ITS_ROLLOUT)
    .join(_r, _r.c.rollout_id == _a.c.rollout_id)
    .where(given(_a.c.rollout_id, _a.c.attempt_id))
)
HELD = select(_a.c.rollout_id).where(given(_a.c.attempt_id), text(schema.OPEN_ATTEMPT))
"""The rollout of an attempt that may still give a sign of life."""
_COUNT_LEFT = select(func.count()).where(
    given(_a.c.rollout_id), _a.c.sequence_id > bindparam("reset_at"), _a.c.reason == WORKER_LEFT
)


def attempt_from_row(row: Sequence[Any]) -> Attempt:
    """Return the attempt of a row that begins with ``ATTEMPT_COLUMNS``."""
    found = dict(zip(_NAMES, row, strict=False))
    found["status"] = AttemptStatus(found["status"])
    found["metadata"] = unpack_metadata(found["metadata"])
    return Attempt(**found)


def reason_of(status: AttemptStatus, reason: str | None) -> str:
    """Return the reason of a failed rollout. It begins with the kind of failure: ``timeout``,
    ``unresponsive``, or the kind that ``reason`` begins with; a failure without a reason is ``failed``.
    """
    if status is AttemptStatus.FAILED or (reason and failure_kind(reason) == status):
        return reason or status
    return f"{status}: {reason}" if reason else status


class AttemptState(NamedTuple):
    """An attempt with its rollout's state, which decides whether it may write and what follows its end."""

    attempt: Attempt
    config: RolloutConfig
    arrivals: int
    rollout_status: str
    latest: int
    run_id: str | None
    attempts_reset_at: int
    """Attempts up to this number may not write and do not count against ``max_attempts``."""


def watch_limits(store: Tables, config: RolloutConfig, now: float) -> None:
    """Set the timer for an attempt that is alive now."""
    limits = [s for s in (config.unresponsive_seconds, config.timeout_seconds) if s is not None]
    if limits:
        if store.cache.next_due is not None:
            store.cache.next_due = min(store.cache.next_due, now + min(limits))
        store.timer.arm(min(limits))
        store.watch.start()


@write
def update_rollout(
    store: Tables,
    rollout_id: str,
    status: RolloutStatus | None,
    reason: str | None,
    config: RolloutConfig | None,
    metadata: dict[str, Any] | None,
) -> Rollout:
    store.db.lock_rollouts([rollout_id])
    rollout, key = find_rollout(store, rollout_id), {"rollout_id": rollout_id}
    rollout.config = rollout.config if config is None else config
    if metadata is not None:
        check_metadata(metadata)
    check_rollout(rollout)
    if config is not None:
        store.db.update(_r, key, **config_columns(config))
        store.cache.next_due = None
        watch_limits(store, config, store.clock())
    if metadata:
        rollout.metadata = {**rollout.metadata, **metadata}
        store.db.update(_r, key, metadata=codec.pack(rollout.metadata))
    if status is not None and RolloutStatus(status) is not rollout.status:
        _set_status(store, rollout, RolloutStatus(status), reason)
    return rollout


def _set_status(store: Tables, rollout: Rollout, status: RolloutStatus, reason: str | None) -> None:
    """Set the status that a caller asked for."""
    now = store.clock()
    running = status is RolloutStatus.RUNNING and rollout.status is RolloutStatus.PREPARING
    requeue = status in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING)
    if rollout.status.final or not (status.final or requeue or running):
        raise Conflict(f"rollout {rollout.rollout_id} cannot go from {rollout.status} to {status}")
    if not running:
        end = AttemptStatus.SUCCEEDED if status is RolloutStatus.SUCCEEDED else AttemptStatus.FAILED
        end_latest(store, rollout.rollout_id, end, now, reason or f"{status}: the rollout was set to it")
    set_rollout_status(store, rollout.rollout_id, rollout.run_id, status, now, reason)
    rollout.status, rollout.end_time = status, now if status.final else None
    rollout.reason = rollout.reason if reason is None else reason


@write
def requeue_rollouts(store: Tables, rollout_ids: Sequence[str], reason: str) -> list[Rollout]:
    store.db.lock_rollouts(rollout_ids)
    return [_requeue(store, rollout_id, reason) for rollout_id in dict.fromkeys(rollout_ids)]


def _requeue(store: Tables, rollout_id: str, reason: str) -> Rollout:
    rollout = find_rollout(store, rollout_id)
    if rollout.status is RolloutStatus.QUEUING and not rollout.attempts:
        return rollout
    end_latest(store, rollout_id, AttemptStatus.UNRESPONSIVE, store.clock(), reason)
    store.cache.attempts.pop(rollout_id, None)
    rollout.status, rollout.end_time, rollout.reason = RolloutStatus.REQUEUING, None, None
    store.db.update(
        _r,
        {"rollout_id": rollout_id},
        status="requeuing",
        end_time=None,
        reason=None,
        forgiven=rollout.attempts,
    )
    store.waiters.notify_queued(rollout.run_id)
    return rollout


def end_latest(store: Tables, rollout_id: str, status: AttemptStatus, now: float, reason: str) -> None:
    """End the latest attempt of a rollout, if it is live."""
    attempt = latest_attempt(store, rollout_id)
    if attempt is not None and attempt.status not in FINAL_STATUSES:
        end_attempt(store, attempt, status, now, reason)


def attempt_state(store: Tables, rollout_id: str, attempt_id: str) -> AttemptState | None:
    """Lock the rollout; return the attempt with its rollout's state, ``None`` if there is no such attempt."""
    store.db.lock_rollouts([rollout_id])
    row = store.db.one(_STATE, rollout_id=rollout_id, attempt_id=attempt_id)
    if row is None:
        return None
    *state, config = row[len(_NAMES) :]
    return AttemptState(attempt_from_row(row), unpack_config(config), *state)


def require_writable(
    store: Tables, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
) -> AttemptState:
    """Return the attempt. Raise :class:`StoreRefusal`, counted under ``refused``, if it may not write."""
    state = attempt_state(store, rollout_id, attempt_id)
    if state is None:
        raise NotFound(f"rollout {rollout_id} has no attempt {attempt_id}")
    a = state.attempt
    requeued = a.sequence_id <= state.attempts_reset_at
    fenced = requeued or a.sequence_id != state.latest or (fence is not None and fence != a.fence)
    revivable = a.status is AttemptStatus.UNRESPONSIVE and state.rollout_status == "requeuing"
    if requeued and a.sequence_id == state.latest:
        why, say = "fenced", "its rollout was put back into the queue"
    elif fenced:
        why, say = "fenced", f"its lease went to a later attempt (fence {state.latest})"
    elif a.status in FINAL_STATUSES and not revivable:
        why = f"after-{a.status}"
        say = f"it has ended: {a.status}" + (f" ({a.reason})" if a.reason else "")
    else:
        return state
    message = f"attempt {attempt_id} of {rollout_id}: {what} refused, {say}"
    raise StoreRefusal(message, f"{what}-{why}", rollout_id, attempt_id, n)


def writable_attempt(
    store: Tables, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
) -> CachedAttempt:
    """Do the same as :func:`require_writable`, but without a query if the attempt is cached."""
    cached = store.cache.attempts.get(rollout_id)
    if cached is not None and cached.attempt_id == attempt_id and fence in (None, cached.fence):
        return cached
    state = require_writable(store, rollout_id, attempt_id, what, n, fence)
    a = state.attempt
    if a.status is AttemptStatus.UNRESPONSIVE:
        revive(store, state)
        save_attempt(store, a)
    running = a.status is AttemptStatus.RUNNING and state.rollout_status == "running"
    cached = CachedAttempt(attempt_id, a.sequence_id, a.fence, state.arrivals, running)
    return store.cache.put(rollout_id, cached)


def revive(store: Tables, state: AttemptState) -> None:
    """Revive an unresponsive attempt, which the caller saves."""
    a = state.attempt
    a.status, a.end_time, a.reason = AttemptStatus.RUNNING, None, None
    watch_limits(store, state.config, store.clock())


def touch(store: Tables, rollout_id: str, cached: CachedAttempt, now: float, arrivals: int = 0) -> None:
    """Note a sign of life, and new spans or calls: attempt and rollout are running."""
    key, total = {"rollout_id": rollout_id, "sequence_id": cached.sequence_id}, cached.arrivals + arrivals
    if cached.running:  # to write the status again would write an index again
        store.db.update(_a, key, arrivals=total, last_heartbeat_time=now)
    else:
        store.db.update(_a, key, status="running", arrivals=total, last_heartbeat_time=now)
        store.db.update(_r, {"rollout_id": rollout_id}, status="running")
    cached.arrivals, cached.running = total, True


def end_attempt(
    store: Tables, attempt: Attempt, status: AttemptStatus, now: float, reason: str | None
) -> None:
    """End an attempt, and free its worker."""
    store.cache.drop_call_index(attempt.attempt_id)
    attempt.status, attempt.end_time = status, now
    attempt.reason = reason if reason is not None else attempt.reason
    save_attempt(store, attempt)
    if attempt.worker_id is not None:
        store.db.execute(_FREE, worker=attempt.worker_id, attempt=attempt.attempt_id)


def save_attempt(store: Tables, a: Attempt) -> None:
    """Write what changes of an attempt."""
    store.cache.attempts.pop(a.rollout_id, None)
    store.db.update(
        _a,
        {"rollout_id": a.rollout_id, "sequence_id": a.sequence_id},
        status=a.status.value,
        worker_id=a.worker_id,
        end_time=a.end_time,
        last_heartbeat_time=a.last_heartbeat_time,
        reason=a.reason,
        metadata=codec.pack_optional(a.metadata),
    )


def end_and_move_on(
    store: Tables, state: AttemptState, status: AttemptStatus, now: float, reason: str | None
) -> None:
    """End an attempt, and set the next status of its rollout."""
    end_attempt(store, state.attempt, status, now, reason)
    rollout_id, why = state.attempt.rollout_id, reason_of(status, reason)
    if status is AttemptStatus.SUCCEEDED:
        set_rollout_status(store, rollout_id, state.run_id, RolloutStatus.SUCCEEDED, now)
    elif _should_retry(store, state, status, why):
        set_rollout_status(store, rollout_id, state.run_id, RolloutStatus.REQUEUING, now)
    else:
        set_rollout_status(store, rollout_id, state.run_id, RolloutStatus.FAILED, now, why)


def _should_retry(store: Tables, state: AttemptState, status: AttemptStatus, reason: str) -> bool:
    """Return whether another attempt follows this end."""
    config, kind = state.config, failure_kind(reason) or AttemptStatus.FAILED
    if status not in config.retry_condition and kind not in config.retry_on:
        return False
    made, reset_at = state.latest - state.attempts_reset_at, state.attempts_reset_at
    if made >= config.max_attempts:
        made -= store.db.value(_COUNT_LEFT, rollout_id=state.attempt.rollout_id, reset_at=reset_at)
    return made < config.max_attempts


@read
def query_attempts(store: Tables, rollout_id: str, limit: int | None, after: str | None) -> list[Attempt]:
    check_limit(limit)
    find_rollout(store, rollout_id)
    found = [attempt_from_row(row) for row in store.db.all(_ALL_OF, rollout_id=rollout_id)]
    if after is not None:
        ids = [attempt.attempt_id for attempt in found]
        if after not in ids:
            raise NotFound(f"after: rollout {rollout_id} has no attempt {after}")
        found = found[ids.index(after) + 1 :]
    return found[:limit]


@read
def get_latest_attempt(store: Tables, rollout_id: str) -> Attempt | None:
    return latest_attempt(store, rollout_id)


def latest_attempt(store: Tables, rollout_id: str) -> Attempt | None:
    """Return the attempt that counts; ``None`` before the first lease."""
    row = store.db.one(_LATEST_OF, rollout_id=rollout_id)
    if row is None:
        find_rollout(store, rollout_id)  # NotFound, if there is no such rollout
        return None
    return attempt_from_row(row)


# ---------------------------------------------------------------------------------------------------- workers
_w = schema.workers
_FREE = (
    update(_w)
    .where(_w.c.worker_id == bindparam("worker"), _w.c.current_attempt_id == bindparam("attempt"))
    .values(status="idle", current_rollout_id=None, current_attempt_id=None)
)


def set_worker(
    store: Tables, worker_id: str, status: str, stats: dict[str, Any] | None = None, **attempt: str
) -> None:
    """Update a worker, or register it. ``attempt``: its current rollout and attempt, if they change."""
    columns = {"status": status, "last_heartbeat_time": store.clock(), **attempt}
    if stats is not None:
        columns["stats"] = codec.pack(stats)
    if not store.db.update(_w, {"worker_id": worker_id}, **columns):
        store.db.insert(_w, {"worker_id": worker_id, **columns})
