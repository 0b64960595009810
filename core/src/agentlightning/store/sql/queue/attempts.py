"""Attempts: which of them may write, their end, and the next status of their rollout.

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

from sqlalchemy import bindparam, func, select

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_metadata
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.cache import CachedAttempt
from agentlightning.store.sql.clock import Timer
from agentlightning.store.sql.core import StoreRefusal, read, write
from agentlightning.store.sql.queue.rollouts import (
    RolloutStore,
    check_rollout,
    config_columns,
    unpack_config,
    unpack_metadata,
)
from agentlightning.store.sql.queue.workers import WorkerStore
from agentlightning.store.sql.stalls import LoopWatch
from agentlightning.store.sql.statements import given
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


class AttemptStore(RolloutStore, WorkerStore):
    """Executions of rollouts."""

    timer: Timer
    watch: LoopWatch

    def _watch_limits(self, config: RolloutConfig, now: float) -> None:
        """Set the timer for an attempt that is alive now."""
        limits = [s for s in (config.unresponsive_seconds, config.timeout_seconds) if s is not None]
        if limits:
            if self.cache.next_due is not None:
                self.cache.next_due = min(self.cache.next_due, now + min(limits))
            self.timer.arm(min(limits))
            self.watch.start()

    @write
    def update_rollout(
        self,
        rollout_id: str,
        status: RolloutStatus | None = None,
        *,
        reason: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Rollout:
        """Set status or configuration, merge metadata. To end or requeue a rollout ends its attempt too."""
        self.db.lock_rollouts([rollout_id])
        rollout, key = self._rollout(rollout_id), {"rollout_id": rollout_id}
        rollout.config = rollout.config if config is None else config
        if metadata is not None:
            check_metadata(metadata)
        check_rollout(rollout)
        if config is not None:
            self.db.update(_r, key, **config_columns(config))
            self.cache.next_due = None
            self._watch_limits(config, self.clock())
        if metadata:
            rollout.metadata = {**rollout.metadata, **metadata}
            self.db.update(_r, key, metadata=codec.pack(rollout.metadata))
        if status is not None and RolloutStatus(status) is not rollout.status:
            self._set_status(rollout, RolloutStatus(status), reason)
        return rollout

    def _set_status(self, rollout: Rollout, status: RolloutStatus, reason: str | None) -> None:
        """Set the status that a caller asked for."""
        now = self.clock()
        running = status is RolloutStatus.RUNNING and rollout.status is RolloutStatus.PREPARING
        requeue = status in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING)
        if rollout.status.final or not (status.final or requeue or running):
            raise Conflict(f"rollout {rollout.rollout_id} cannot go from {rollout.status} to {status}")
        if not running:
            end = AttemptStatus.SUCCEEDED if status is RolloutStatus.SUCCEEDED else AttemptStatus.FAILED
            self._end_latest(rollout.rollout_id, end, now, reason or f"{status}: the rollout was set to it")
        self._set_rollout_status(rollout.rollout_id, rollout.run_id, status, now, reason)
        rollout.status, rollout.end_time = status, now if status.final else None
        rollout.reason = rollout.reason if reason is None else reason

    @write
    def requeue_rollouts(
        self, rollout_ids: Sequence[str], *, reason: str, request_id: str | None = None
    ) -> list[Rollout]:
        """Put rollouts back into the queue, also those that have ended. Return them in the order asked for.

        A live attempt is fenced and ended as unresponsive with the reason; an ended one stays as it is.
        Neither counts against ``max_attempts`` any more. A queued rollout that has had no attempt stays as it
        is.
        """
        self.db.lock_rollouts(rollout_ids)
        return [self._requeue(rollout_id, reason) for rollout_id in dict.fromkeys(rollout_ids)]

    def _requeue(self, rollout_id: str, reason: str) -> Rollout:
        rollout = self._rollout(rollout_id)
        if rollout.status is RolloutStatus.QUEUING and not rollout.attempts:
            return rollout
        self._end_latest(rollout_id, AttemptStatus.UNRESPONSIVE, self.clock(), reason)
        self.cache.attempts.pop(rollout_id, None)
        rollout.status, rollout.end_time, rollout.reason = RolloutStatus.REQUEUING, None, None
        self.db.update(
            _r,
            {"rollout_id": rollout_id},
            status="requeuing",
            end_time=None,
            reason=None,
            forgiven=rollout.attempts,
        )
        self.waiters.notify_queued(rollout.run_id)
        return rollout

    def _end_latest(self, rollout_id: str, status: AttemptStatus, now: float, reason: str) -> None:
        attempt = self._latest(rollout_id)
        if attempt is not None and attempt.status not in FINAL_STATUSES:
            self._end_attempt(attempt, status, now, reason)

    def _state(self, rollout_id: str, attempt_id: str) -> AttemptState | None:
        self.db.lock_rollouts([rollout_id])
        row = self.db.one(_STATE, rollout_id=rollout_id, attempt_id=attempt_id)
        if row is None:
            return None
        *state, config = row[len(_NAMES) :]
        return AttemptState(attempt_from_row(row), unpack_config(config), *state)

    def _require_writable(
        self, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
    ) -> AttemptState:
        """Return the attempt. Raise :class:`StoreRefusal`, counted under ``refused``, if it may not write."""
        state = self._state(rollout_id, attempt_id)
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

    def _writable_attempt(
        self, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
    ) -> CachedAttempt:
        """Do the same as :meth:`_require_writable`, but without a query if the attempt is cached."""
        cached = self.cache.attempts.get(rollout_id)
        if cached is not None and cached.attempt_id == attempt_id and fence in (None, cached.fence):
            return cached
        state = self._require_writable(rollout_id, attempt_id, what, n, fence)
        a = state.attempt
        if a.status is AttemptStatus.UNRESPONSIVE:
            self._revive(state)
            self._save(a)
        running = a.status is AttemptStatus.RUNNING and state.rollout_status == "running"
        cached = CachedAttempt(attempt_id, a.sequence_id, a.fence, state.arrivals, running)
        return self.cache.put(rollout_id, cached)

    def _revive(self, state: AttemptState) -> None:
        """Revive an unresponsive attempt, which the caller saves."""
        a = state.attempt
        a.status, a.end_time, a.reason = AttemptStatus.RUNNING, None, None
        self._watch_limits(state.config, self.clock())

    def _touch(self, rollout_id: str, cached: CachedAttempt, now: float, arrivals: int = 0) -> None:
        """Note a sign of life, and new spans or calls: attempt and rollout are running."""
        key, total = {"rollout_id": rollout_id, "sequence_id": cached.sequence_id}, cached.arrivals + arrivals
        if cached.running:  # to write the status again would write an index again
            self.db.update(_a, key, arrivals=total, last_heartbeat_time=now)
        else:
            self.db.update(_a, key, status="running", arrivals=total, last_heartbeat_time=now)
            self.db.update(_r, {"rollout_id": rollout_id}, status="running")
        cached.arrivals, cached.running = total, True

    def _end_attempt(self, attempt: Attempt, status: AttemptStatus, now: float, reason: str | None) -> None:
        self.cache.drop_call_index(attempt.attempt_id)
        attempt.status, attempt.end_time = status, now
        attempt.reason = reason if reason is not None else attempt.reason
        self._save(attempt)
        if attempt.worker_id is not None:
            self._worker_free(attempt.worker_id, attempt.attempt_id)

    def _save(self, a: Attempt) -> None:
        self.cache.attempts.pop(a.rollout_id, None)
        self.db.update(
            _a,
            {"rollout_id": a.rollout_id, "sequence_id": a.sequence_id},
            status=a.status.value,
            worker_id=a.worker_id,
            end_time=a.end_time,
            last_heartbeat_time=a.last_heartbeat_time,
            reason=a.reason,
            metadata=codec.pack_optional(a.metadata),
        )

    def _end_and_move_on(
        self, state: AttemptState, status: AttemptStatus, now: float, reason: str | None
    ) -> None:
        """End an attempt, and set the next status of its rollout."""
        self._end_attempt(state.attempt, status, now, reason)
        rollout_id, why = state.attempt.rollout_id, reason_of(status, reason)
        if status is AttemptStatus.SUCCEEDED:
            self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.SUCCEEDED, now)
        elif self._should_retry(state, status, why):
            self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.REQUEUING, now)
        else:
            self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.FAILED, now, why)

    def _should_retry(self, state: AttemptState, status: AttemptStatus, reason: str) -> bool:
        """Return whether another attempt follows this end."""
        config, kind = state.config, failure_kind(reason) or AttemptStatus.FAILED
        if status not in config.retry_condition and kind not in config.retry_on:
            return False
        made, reset_at = state.latest - state.attempts_reset_at, state.attempts_reset_at
        if made >= config.max_attempts:
            made -= self.db.value(_COUNT_LEFT, rollout_id=state.attempt.rollout_id, reset_at=reset_at)
        return made < config.max_attempts

    @read
    def query_attempts(
        self, rollout_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Attempt]:
        """Return the attempts of a rollout, first to last. ``after``: the last id of the page before."""
        check_limit(limit)
        self._rollout(rollout_id)
        found = [attempt_from_row(row) for row in self.db.all(_ALL_OF, rollout_id=rollout_id)]
        if after is not None:
            ids = [attempt.attempt_id for attempt in found]
            if after not in ids:
                raise NotFound(f"after: rollout {rollout_id} has no attempt {after}")
            found = found[ids.index(after) + 1 :]
        return found[:limit]

    @read
    def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt that counts; ``None`` before the first lease."""
        return self._latest(rollout_id)

    def _latest(self, rollout_id: str) -> Attempt | None:
        row = self.db.one(_LATEST_OF, rollout_id=rollout_id)
        if row is None:
            self._rollout(rollout_id)  # NotFound, if there is no such rollout
            return None
        return attempt_from_row(row)
