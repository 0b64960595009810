"""Attempts: who may write, signs of life, how they end and what becomes of their rollout.

A rollout goes queuing → preparing → running → final; an attempt that failed, timed out or fell silent sends
it to requeuing when its configuration allows, else to failed.

Invariants: only the latest attempt of a rollout can write, and only until it has ended; every late write is
refused and counted. An unresponsive attempt whose rollout nobody has taken yet comes back to life by writing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, case, func, literal_column, or_, select, text, update

from agentlightning.store import codec, schema
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.core import Refused
from agentlightning.store.db import sql
from agentlightning.store.memory import Live
from agentlightning.store.pages import check_limit
from agentlightning.store.rollouts import Rollouts
from agentlightning.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from agentlightning.types.failure import kind_of

GRACE = 10.0
"""Seconds the runner has to report a timeout itself before the store does."""

LEFT = "unresponsive: the worker left before it had the lease"
"""Reason of an attempt that nobody has tried: it does not count against ``max_attempts``."""
ENDS = (AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.TIMEOUT, AttemptStatus.UNRESPONSIVE)
_a, _r = schema.attempts, schema.rollouts
_PINS = ("resources_id", "resources_version")
ATTEMPT_COLUMNS = [
    *(c for c in _a.c if c.name not in ("arrivals", *_PINS)),
    *(_a.c[name] for name in _PINS),
]
_OF_ROLLOUT = (
    select(*ATTEMPT_COLUMNS).where(_a.c.rollout_id == bindparam("rollout_id")).order_by(_a.c.sequence_id)
)
_ALL_OF = sql(_OF_ROLLOUT)
_LATEST_OF = sql(_OF_ROLLOUT.order_by(None).order_by(_a.c.sequence_id.desc()).limit(1))
_HOLDING = sql(
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
    .where(_a.c.rollout_id == bindparam("rollout_id"), _a.c.attempt_id == bindparam("attempt_id"))
)
_AT = and_(_a.c.rollout_id == bindparam("rollout"), _a.c.sequence_id == bindparam("number"))
_TOUCH = sql(
    update(_a)
    .where(_AT)
    .values(
        status="running",
        arrivals=_a.c.arrivals + bindparam("n"),
        last_heartbeat_time=bindparam("now"),
    )
)
_RUN = sql(update(_r).where(_r.c.rollout_id == bindparam("rollout")).values(status="running"))
_WRITE = sql(
    update(_a).where(_AT).values(arrivals=_a.c.arrivals + bindparam("n")),
    *("arrivals", "status", "worker_id", "end_time", "last_heartbeat_time", "reason", "metadata"),
)
_UNTRIED = sql(
    select(func.count()).where(
        _a.c.rollout_id == bindparam("rollout_id"),
        _a.c.sequence_id > bindparam("forgiven"),
        _a.c.reason == LEFT,
    )
)
_opened: Any = bindparam("opened")
_now: Any = bindparam("now")


def _since(time: Any) -> Any:
    """A time of this opening of the file, as it is; any other (the clock may have been set meanwhile) counts
    as the moment of opening, so that whoever lives on has time to say so.
    """
    return case((time.between(_opened, _now), time), else_=_opened)


_silent = _since(func.coalesce(_a.c.last_heartbeat_time, _a.c.start_time)) + _r.c.unresponsive_seconds
_NEVER = 1e18
_late = _since(_a.c.start_time) + _r.c.timeout_seconds + literal_column(str(GRACE))
_ALIVE = and_(text("attempts." + schema.HELD), _a.c.status != literal_column("'unresponsive'"))
_OVERDUE = sql(
    select(_a.c.rollout_id, _a.c.attempt_id, (_silent <= _now).label("silent"))
    .join(_r, _r.c.rollout_id == _a.c.rollout_id)
    .where(_ALIVE, or_(_silent <= _now, _late <= _now))
)
_NEXT_DUE = sql(
    select(func.min(func.min(func.coalesce(_silent, _NEVER), func.coalesce(_late, _NEVER))))
    .select_from(_a.join(_r, _r.c.rollout_id == _a.c.rollout_id))
    .where(_ALIVE)
)


def attempt_of(row: Sequence[Any]) -> Attempt:
    """The attempt of a row of ``ATTEMPT_COLUMNS``."""
    (attempt_id, rollout_id, sequence_id, fence, status, worker_id) = row[:6]
    (start_time, end_time, last_heartbeat_time, reason, metadata, resources_id, version) = row[6:13]
    return Attempt(
        attempt_id=attempt_id,
        rollout_id=rollout_id,
        sequence_id=sequence_id,
        fence=fence,
        status=AttemptStatus(status),
        worker_id=worker_id,
        start_time=start_time,
        end_time=end_time,
        last_heartbeat_time=last_heartbeat_time,
        reason=reason,
        metadata={} if metadata is None else codec.unpack(metadata),
        resources_id=resources_id,
        resources_version=version,
    )


def reason_of(status: AttemptStatus, reason: str | None) -> str:
    """Why a rollout failed, by the kind of its failure: silence and timeouts are kinds of their own, and a
    failure that names none is ``failed``.
    """
    if status is not AttemptStatus.FAILED:
        return reason if reason and kind_of(reason) == status else f"{status}: {reason}" if reason else status
    return reason or status


class Held(NamedTuple):
    """An attempt, with what decides whether it may write and what becomes of its rollout."""

    attempt: Attempt
    arrivals: int
    rollout_status: str
    latest: int
    run_id: str | None
    config: RolloutConfig
    forgiven: int
    """Attempts up to this number count no longer and may no longer write."""

    def wants_another(self, status: AttemptStatus, reason: str) -> bool:
        """Whether an attempt that ends so is to be followed by another, while ``max_attempts`` allows."""
        kind = kind_of(reason) or AttemptStatus.FAILED
        return status in self.config.retry_condition or kind in self.config.retry_on


class Attempts(Rollouts):
    """Executions of rollouts. ``_watch…`` and ``_worker_*`` come from other parts."""

    opened: float
    """When this process opened the file, by ``clock``. Nobody is overdue before his own limit has passed from
    here: a worker may well have lived while the store was down.
    """

    def _watch(self, config: RolloutConfig, now: float) -> None:
        """An attempt under these limits begins: see to it that it is expired in time."""
        raise NotImplementedError

    def _worker_busy(self, worker_id: str, rollout_id: str, attempt_id: str, now: float) -> None:
        raise NotImplementedError

    def _worker_free(self, worker_id: str, attempt_id: str) -> None:
        raise NotImplementedError

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
        """Set status or configuration, merge metadata. To end or requeue a rollout ends its attempt."""

        def work() -> Rollout:
            rollout = self._rollout(rollout_id)
            if config is not None or metadata:
                self._configure(rollout, config, metadata)
            if config is not None:
                self._watch(config, self.clock())
            if status is not None and RolloutStatus(status) is not rollout.status:
                self._order(rollout, RolloutStatus(status), reason)
            return rollout

        return await self._write("update_rollout", work, request_id, Rollout)

    def _order(self, rollout: Rollout, status: RolloutStatus, reason: str | None) -> None:
        """Move a rollout on request from outside."""
        now = self.clock()
        running = status is RolloutStatus.RUNNING and rollout.status is RolloutStatus.PREPARING
        requeue = status in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING)
        if rollout.status.final or not (status.final or requeue or running):
            raise Conflict(f"rollout {rollout.rollout_id} cannot go from {rollout.status} to {status}")
        if not running:
            end = AttemptStatus.SUCCEEDED if status is RolloutStatus.SUCCEEDED else AttemptStatus.FAILED
            self._end_latest(rollout.rollout_id, end, now, reason or f"{status}: the rollout was set to it")
        self._move(rollout.rollout_id, rollout.run_id, status, now, reason)
        rollout.status, rollout.end_time = status, now if status.final else None
        rollout.reason = rollout.reason if reason is None else reason

    def _end_latest(self, rollout_id: str, status: AttemptStatus, now: float, reason: str) -> None:
        row = self.db.one(_LATEST_OF, rollout_id=rollout_id)
        if row is not None:
            attempt = attempt_of(row)
            if attempt.status not in ENDS:
                self._close(attempt, status, now, reason)

    def _held(self, rollout_id: str, attempt_id: str) -> Held | None:
        row = self.db.one(_HOLDING, rollout_id=rollout_id, attempt_id=attempt_id)
        if row is None:
            return None
        arrivals, rollout_status, latest, run_id, config, forgiven = row[13:19]
        tried = RolloutConfig() if config is None else codec.unpack(config, RolloutConfig)
        return Held(attempt_of(row), arrivals, rollout_status, latest, run_id, tried, forgiven)

    def _writable(
        self, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
    ) -> Held:
        """The attempt, if it may write; else the refusal, to be counted under ``refused``."""
        held = self._held(rollout_id, attempt_id)
        if held is None:
            raise NotFound(f"rollout {rollout_id} has no attempt {attempt_id}")
        a = held.attempt
        requeued = a.sequence_id <= held.forgiven
        fenced = requeued or a.sequence_id != held.latest or (fence is not None and fence != a.fence)
        revivable = a.status is AttemptStatus.UNRESPONSIVE and held.rollout_status == "requeuing"
        if requeued and a.sequence_id == held.latest:
            why, say = "fenced", "its rollout was put back into the queue"
        elif fenced:
            why, say = "fenced", f"its lease went to a later attempt (fence {held.latest})"
        elif a.status in ENDS and not revivable:
            why, say = (
                f"after-{a.status}",
                f"it has ended: {a.status}" + (f" ({a.reason})" if a.reason else ""),
            )
        else:
            return held
        raise Refused(
            f"attempt {attempt_id} of {rollout_id}: {what} refused, {say}",
            f"{what}-{why}",
            rollout_id,
            attempt_id,
            n,
        )

    def _live(
        self, rollout_id: str, attempt_id: str, what: str, n: int = 1, fence: int | None = None
    ) -> Live:
        """As :meth:`_writable`, without a query where the attempt is in mind."""
        live = self.memory.live.get(rollout_id)
        if live is not None and live.attempt_id == attempt_id and fence in (None, live.fence):
            return live
        held = self._writable(rollout_id, attempt_id, what, n, fence)
        a = held.attempt
        if a.status is AttemptStatus.UNRESPONSIVE:
            self._revive(held)
            self._save(a)
        running = a.status is AttemptStatus.RUNNING and held.rollout_status == "running"
        live = Live(attempt_id, a.sequence_id, a.fence, held.arrivals, running)
        return self.memory.keep(rollout_id, live)

    def _revive(self, held: Held) -> None:
        """Back to life, to be saved."""
        a = held.attempt
        a.status, a.end_time, a.reason = AttemptStatus.RUNNING, None, None
        self._watch(held.config, self.clock())

    def _touch(self, rollout_id: str, live: Live, now: float, arrivals: int = 0) -> None:
        """A sign of life: the attempt runs, and so does its rollout."""
        self.db.execute(_TOUCH, rollout=rollout_id, number=live.sequence_id, n=arrivals, now=now)
        if not live.running:
            self._run(rollout_id)
        live.arrivals, live.running = live.arrivals + arrivals, True

    def _run(self, rollout_id: str) -> None:
        self.db.execute(_RUN, rollout=rollout_id)

    def _close(
        self, attempt: Attempt, status: AttemptStatus, now: float, reason: str | None, arrivals: int = 0
    ) -> None:
        attempt.status, attempt.end_time = status, now
        attempt.reason = reason if reason is not None else attempt.reason
        self._save(attempt, arrivals)
        if attempt.worker_id is not None:
            self._worker_free(attempt.worker_id, attempt.attempt_id)

    def _save(self, a: Attempt, arrivals: int = 0) -> None:
        self.memory.live.pop(a.rollout_id, None)
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

    def _finish(
        self, held: Held, status: AttemptStatus, now: float, reason: str | None, arrivals: int = 0
    ) -> None:
        """End an attempt and decide what becomes of its rollout."""
        self._close(held.attempt, status, now, reason, arrivals)
        rollout_id, why = held.attempt.rollout_id, reason_of(status, reason)
        if status is AttemptStatus.SUCCEEDED:
            self._move(rollout_id, held.run_id, RolloutStatus.SUCCEEDED, now)
        elif held.wants_another(status, why) and self._may_try(rollout_id, held):
            self._move(rollout_id, held.run_id, RolloutStatus.REQUEUING, now)
        else:
            self._move(rollout_id, held.run_id, RolloutStatus.FAILED, now, why)

    def _may_try(self, rollout_id: str, held: Held) -> bool:
        made, most = held.latest - held.forgiven, held.config.max_attempts
        if made >= most:
            untried = self.db.one(_UNTRIED, rollout_id=rollout_id, forgiven=held.forgiven)
            made -= 0 if untried is None else untried[0]
        return made < most

    def _expire(self, now: float) -> int:
        if self.memory.due is not None and now < self.memory.due:
            return 0
        overdue = self.db.all(_OVERDUE, now=now, opened=self.opened)
        for rollout_id, attempt_id, silent in overdue:
            held = self._held(rollout_id, attempt_id)
            assert held is not None
            if silent:
                limit = held.config.unresponsive_seconds
                why = f"unresponsive: no sign of life within unresponsive_seconds ({limit:g} s)"
                self._finish(held, AttemptStatus.UNRESPONSIVE, now, why)
            else:
                why = f"timeout: longer than timeout_seconds ({held.config.timeout_seconds:g} s)"
                self._finish(held, AttemptStatus.TIMEOUT, now, why)
        self.memory.due = self._earliest()
        return len(overdue)

    def _next_due(self) -> float | None:
        """When to look again for attempts that are overdue; ``None``: never."""
        if self.memory.due is None:
            self.memory.due = self._earliest()
        return None if math.isinf(self.memory.due) else self.memory.due

    def _earliest(self) -> float:
        """When the next live attempt will be overdue, if it gives no sign of life."""
        row = self.db.one(_NEXT_DUE, now=self.clock(), opened=self.opened)
        return math.inf if row is None or row[0] is None or row[0] >= _NEVER else float(row[0])

    async def expire(self, now: float | None = None) -> int:
        """End attempts that are overdue at ``now``; how many. The store itself calls it in time."""
        return await self._write("expire", lambda: self._expire(self.clock() if now is None else now))

    async def query_attempts(
        self, rollout_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Attempt]:
        """Attempts of a rollout, first to last. ``after``: the last attempt id of the page before."""
        check_limit(limit)

        def work() -> list[Attempt]:
            self._rollout(rollout_id)
            found = [attempt_of(row) for row in self.db.all(_ALL_OF, rollout_id=rollout_id)]
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
        return attempt_of(row)
