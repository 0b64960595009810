"""Attempts: which may write, their signs of life, their end and the next status of their rollout.

A rollout goes queuing → preparing → running → final. An attempt that failed, timed out or fell silent sends
its rollout to requeuing if the configuration allows, else to failed.

Invariants: only the latest attempt of a rollout can write, and only until it has ended; every late write is
refused and counted. An unresponsive attempt whose rollout is not leased again yet is revived by a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, func, select, update

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.pages import check_limit
from agentlightning.store.sqlite.cache import CachedAttempt
from agentlightning.store.sqlite.core import StoreRefusal
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given
from agentlightning.store.sqlite.queue.rollouts import RolloutStore
from agentlightning.store.sqlite.queue.workers import WorkerStore
from agentlightning.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from agentlightning.types.failure import failure_kind

WORKER_LEFT = "unresponsive: the worker left before it had the lease"
"""Reason of an attempt that no worker began: it does not count against ``max_attempts``."""
FINAL_STATUSES = (
    AttemptStatus.SUCCEEDED,
    AttemptStatus.FAILED,
    AttemptStatus.TIMEOUT,
    AttemptStatus.UNRESPONSIVE,
)
_a, _r = schema.attempts, schema.rollouts
_PINS = ("resources_id", "resources_version")
ATTEMPT_COLUMNS = [
    *(c for c in _a.c if c.name not in ("arrivals", *_PINS)),
    *(_a.c[name] for name in _PINS),
]
_NAMES = [c.name for c in ATTEMPT_COLUMNS]
_OF_ROLLOUT = select(*ATTEMPT_COLUMNS).where(given(_a.c.rollout_id)).order_by(_a.c.sequence_id)
_ALL_OF = compile_sql(_OF_ROLLOUT)
_LATEST_OF = compile_sql(_OF_ROLLOUT.order_by(None).order_by(_a.c.sequence_id.desc()).limit(1))
_STATE = compile_sql(
    select(
        *ATTEMPT_COLUMNS,
        _a.c.arrivals,
        _r.c.status.label("rollout_status"),
        _r.c.attempts,
        _r.c.run_id,
        _r.c.config,
        _r.c.forgiven,
    )
    .join(_r, _r.c.rollout_id == _a.c.rollout_id)
    .where(given(_a.c.rollout_id, _a.c.attempt_id))
)
_AT = and_(_a.c.rollout_id == bindparam("rollout"), _a.c.sequence_id == bindparam("number"))
_TOUCH = compile_sql(
    update(_a)
    .where(_AT)
    .values(
        status="running",
        arrivals=_a.c.arrivals + bindparam("n"),
        last_heartbeat_time=bindparam("now"),
    )
)
_SET_RUNNING = compile_sql(update(_r).where(_r.c.rollout_id == bindparam("rollout")).values(status="running"))
_WRITE = compile_sql(
    update(_a).where(_AT).values(arrivals=_a.c.arrivals + bindparam("n")),
    *("arrivals", "status", "worker_id", "end_time", "last_heartbeat_time", "reason", "metadata"),
)
_COUNT_LEFT = compile_sql(
    select(func.count()).where(
        given(_a.c.rollout_id),
        _a.c.sequence_id > bindparam("reset_at"),
        _a.c.reason == WORKER_LEFT,
    )
)


def attempt_from_row(row: Sequence[Any]) -> Attempt:
    """The attempt of a row that begins with ``ATTEMPT_COLUMNS``."""
    found = dict(zip(_NAMES, row, strict=False))
    found["status"] = AttemptStatus(found["status"])
    found["metadata"] = {} if found["metadata"] is None else codec.unpack(found["metadata"])
    return Attempt(**found)


def reason_of(status: AttemptStatus, reason: str | None) -> str:
    """The reason of a failed rollout, which begins with the kind of failure: a timeout and silence are kinds,
    and a failure without a reason is ``failed``.
    """
    if status is not AttemptStatus.FAILED:
        return (
            reason
            if reason and failure_kind(reason) == status
            else f"{status}: {reason}"
            if reason
            else status
        )
    return reason or status


class AttemptState(NamedTuple):
    """An attempt with its rollout's state, which decides whether it may write and what follows its end."""

    attempt: Attempt
    arrivals: int
    rollout_status: str
    latest: int
    run_id: str | None
    config: RolloutConfig
    attempts_reset_at: int
    """Attempts up to this number may not write and do not count against ``max_attempts``."""

    def should_retry(self, status: AttemptStatus, reason: str) -> bool:
        """Whether another attempt follows this end, if ``max_attempts`` allows."""
        kind = failure_kind(reason) or AttemptStatus.FAILED
        return status in self.config.retry_condition or kind in self.config.retry_on


class AttemptStore(RolloutStore, WorkerStore):
    """Executions of rollouts."""

    def _watch_limits(self, config: RolloutConfig, now: float) -> None:
        limits = [s for s in (config.unresponsive_seconds, config.timeout_seconds) if s is not None]
        if limits:
            self.cache.lower_next_due(now + min(limits))
            self.timer.arm(min(limits))

    async def update_rollout(
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

        def work() -> Rollout:
            rollout = self._rollout(rollout_id)
            if config is not None or metadata:
                self._configure(rollout, config, metadata)
            if config is not None:
                self._watch_limits(config, self.clock())
            if status is not None and RolloutStatus(status) is not rollout.status:
                self._set_status(rollout, RolloutStatus(status), reason)
            return rollout

        return await self._write("update_rollout", work, request_id, Rollout)

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

    def _end_latest(self, rollout_id: str, status: AttemptStatus, now: float, reason: str) -> None:
        row = self.db.one(_LATEST_OF, rollout_id=rollout_id)
        if row is not None:
            attempt = attempt_from_row(row)
            if attempt.status not in FINAL_STATUSES:
                self._end_attempt(attempt, status, now, reason)

    def _state(self, rollout_id: str, attempt_id: str) -> AttemptState | None:
        row = self.db.one(_STATE, rollout_id=rollout_id, attempt_id=attempt_id)
        if row is None:
            return None
        arrivals, rollout_status, latest, run_id, config, attempts_reset_at = row[13:19]
        tried = RolloutConfig() if config is None else codec.unpack(config, RolloutConfig)
        return AttemptState(
            attempt_from_row(row), arrivals, rollout_status, latest, run_id, tried, attempts_reset_at
        )

    def _require_writable(
        self, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
    ) -> AttemptState:
        """The attempt; :class:`StoreRefusal`, counted under ``refused``, if it may not write."""
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
            why, say = (
                f"after-{a.status}",
                f"it has ended: {a.status}" + (f" ({a.reason})" if a.reason else ""),
            )
        else:
            return state
        raise StoreRefusal(
            f"attempt {attempt_id} of {rollout_id}: {what} refused, {say}",
            f"{what}-{why}",
            rollout_id,
            attempt_id,
            n,
        )

    def _writable_attempt(
        self, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
    ) -> CachedAttempt:
        """As :meth:`_require_writable`, without a query for a cached attempt."""
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
        """Note a sign of life: attempt and rollout are running."""
        self.db.execute(_TOUCH, rollout=rollout_id, number=cached.sequence_id, n=arrivals, now=now)
        if not cached.running:
            self._set_running(rollout_id)
        cached.arrivals, cached.running = cached.arrivals + arrivals, True

    def _set_running(self, rollout_id: str) -> None:
        self.db.execute(_SET_RUNNING, rollout=rollout_id)

    def _end_attempt(
        self, attempt: Attempt, status: AttemptStatus, now: float, reason: str | None, arrivals: int = 0
    ) -> None:
        attempt.status, attempt.end_time = status, now
        attempt.reason = reason if reason is not None else attempt.reason
        self._save(attempt, arrivals)
        if attempt.worker_id is not None:
            self._worker_free(attempt.worker_id, attempt.attempt_id)

    def _save(self, a: Attempt, arrivals: int = 0) -> None:
        self.cache.attempts.pop(a.rollout_id, None)
        self.db.execute(
            _WRITE,
            rollout=a.rollout_id,
            number=a.sequence_id,
            n=arrivals,
            status=a.status.value,
            worker_id=a.worker_id,
            end_time=a.end_time,
            last_heartbeat_time=a.last_heartbeat_time,
            reason=a.reason,
            metadata=codec.pack_optional(a.metadata),
        )

    def _end_and_move_on(
        self, state: AttemptState, status: AttemptStatus, now: float, reason: str | None, arrivals: int = 0
    ) -> None:
        """End an attempt, and set the next status of its rollout."""
        self._end_attempt(state.attempt, status, now, reason, arrivals)
        rollout_id, why = state.attempt.rollout_id, reason_of(status, reason)
        if status is AttemptStatus.SUCCEEDED:
            self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.SUCCEEDED, now)
        elif state.should_retry(status, why) and self._attempts_left(rollout_id, state):
            self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.REQUEUING, now)
        else:
            self._set_rollout_status(rollout_id, state.run_id, RolloutStatus.FAILED, now, why)

    def _attempts_left(self, rollout_id: str, state: AttemptState) -> bool:
        made, most = state.latest - state.attempts_reset_at, state.config.max_attempts
        if made >= most:
            untried = self.db.one(_COUNT_LEFT, rollout_id=rollout_id, reset_at=state.attempts_reset_at)
            made -= 0 if untried is None else untried[0]
        return made < most

    async def query_attempts(
        self, rollout_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Attempt]:
        """Attempts of a rollout, first to last. ``after``: the last attempt id of the page before."""
        check_limit(limit)

        def work() -> list[Attempt]:
            self._rollout(rollout_id)
            found = [attempt_from_row(row) for row in self.db.all(_ALL_OF, rollout_id=rollout_id)]
            if after is not None:
                places = [i for i, a in enumerate(found) if a.attempt_id == after]
                if not places:
                    raise NotFound(f"after: rollout {rollout_id} has no attempt {after}")
                found = found[places[0] + 1 :]
            return found[:limit]

        return await self.writer.read(work)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The attempt that counts; ``None`` before the first lease."""
        return await self.writer.read(lambda: self._latest(rollout_id))

    def _latest(self, rollout_id: str) -> Attempt | None:
        row = self.db.one(_LATEST_OF, rollout_id=rollout_id)
        if row is None:
            self._rollout(rollout_id)  # NotFound, if there is no such rollout
            return None
        return attempt_from_row(row)
