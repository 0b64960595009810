"""Signs of life of attempts, and the end of attempts that exceed their limits.

Limits count from the later of the last sign of life and the opening of the store, and leave out what the
store slept since (:mod:`.waiting`): a worker may have been alive while the store was down or stood still.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, case, func, literal_column, or_, select, text, update

from agentlightning.log_limit import limited
from agentlightning.store.base import StoreError
from agentlightning.store.sql import schema
from agentlightning.store.sql.attempts import (
    HELD,
    attempt_state,
    end_and_move_on,
    set_worker,
    touch,
    writable_attempt,
)
from agentlightning.store.sql.core import StoreRefusal, Tables, write
from agentlightning.store.sql.database import least
from agentlightning.types import AttemptStatus

_log = limited(__name__)
TIMEOUT_GRACE_SECONDS = 10.0
"""Seconds that a runner has to report a timeout before the store ends the attempt itself."""
_RETRY_SECONDS = 5.0
"""Seconds until the next try after a failed one."""
_a, _r = schema.attempts, schema.rollouts
_AHEAD: Any = literal_column("5.0")
"""Seconds by which the clock of another process may be ahead."""
_opened: Any = bindparam("opened")
_now: Any = bindparam("now")


def _since(time: Any) -> Any:
    """Return ``time`` if it lies between the opening of the store and now, else the opening. The clock may
    have been set, and a worker that is alive needs time to say so.
    """
    return case((time.between(_opened, _now + _AHEAD), time), else_=_opened)


_sign_at = _since(func.coalesce(_a.c.last_heartbeat_time, _a.c.start_time))
_start_at = _since(_a.c.start_time)
_silent_at = _sign_at + _r.c.unresponsive_seconds
_timed_out_at = _start_at + _r.c.timeout_seconds + literal_column(str(TIMEOUT_GRACE_SECONDS))
_ALIVE = and_(text("attempts." + schema.OPEN_ATTEMPT), _a.c.status != literal_column("'unresponsive'"))
_LIMITS = (
    select(_a.c.rollout_id, _a.c.attempt_id, _sign_at, _silent_at, _start_at, _timed_out_at)
    .join(_r, _r.c.rollout_id == _a.c.rollout_id)
    .where(_ALIVE)
)
_OVERDUE = _LIMITS.where(or_(_silent_at <= _now, _timed_out_at <= _now))
"""Attempts that are overdue unless the store slept meanwhile."""
_CLAMP_FUTURE = (
    update(_a)
    .where(
        text("attempts." + schema.OPEN_ATTEMPT),
        or_(_a.c.start_time > _opened, _a.c.last_heartbeat_time > _opened),
    )
    .values(
        start_time=least(_a.c.start_time, _opened),
        last_heartbeat_time=least(_a.c.last_heartbeat_time, _opened),
    )
)


class _Limits(NamedTuple):
    """An attempt, its last sign of life, its start, and when each of its limits ends it; ``None``: never."""

    rollout_id: str
    attempt_id: str
    sign: float
    silent_at: float | None
    start: float
    timed_out_at: float | None


def begin_limits(store: Tables) -> None:
    """Count all limits from now on. Times in the future would lengthen them: the clock was set back."""
    store.opened = store.clock()
    store.cache.next_due = None
    store.db.execute(_CLAMP_FUTURE, opened=store.opened)


@write
def heartbeat(
    store: Tables, worker_id: str, attempt_ids: Sequence[str], stats: dict[str, Any] | None
) -> list[str]:
    now = store.clock()
    set_worker(store, worker_id, "busy" if attempt_ids else "idle", stats)
    return [attempt_id for attempt_id in attempt_ids if not _heartbeat_attempt(store, attempt_id, now)]


def _heartbeat_attempt(store: Tables, attempt_id: str, now: float) -> bool:
    row = store.db.one(HELD, attempt_id=attempt_id)
    if row is None:
        return False
    try:
        touch(store, row[0], writable_attempt(store, row[0], attempt_id, "heartbeat"), now)
    except StoreRefusal:  # the result names it; nothing was lost, so nothing is counted
        return False
    return True


def end_overdue(store: Tables, now: float) -> int:
    """End the attempts that are overdue at ``now``; return how many."""
    store.watch.look()
    if store.cache.next_due is not None and now < store.cache.next_due:
        return 0
    overdue = [(one, due) for one in _locked_overdue(store, now) if (due := _due(store, one))[0] <= now]
    for one, (_, silent) in overdue:
        state = attempt_state(store, one.rollout_id, one.attempt_id)
        assert state is not None
        if silent:
            status = AttemptStatus.UNRESPONSIVE
            why = f"no sign of life within unresponsive_seconds ({state.config.unresponsive_seconds:g} s)"
        else:
            status = AttemptStatus.TIMEOUT
            why = f"longer than timeout_seconds ({state.config.timeout_seconds:g} s)"
        end_and_move_on(store, state, status, now, f"{status}: {why}")
    store.cache.next_due = None
    _next_due(store)  # so that polls of an empty queue do not search the live attempts
    return len(overdue)


def _locked_overdue(store: Tables, now: float) -> list[_Limits]:
    """Return the attempts that may be overdue. Nobody else ends or hears of them before the commit."""
    asked = {"now": now, "opened": store.opened}
    found = {row[1]: row[0] for row in store.db.all(_OVERDUE, **asked)}
    if not found:
        return []
    store.db.lock_rollouts(found.values())
    return [_Limits(*row) for row in store.db.all(_OVERDUE, **asked) if row[1] in found]


def _due(store: Tables, one: _Limits) -> tuple[float, bool]:
    """Return when an attempt is overdue, with the time that the store slept, and whether by silence."""
    silent_at = math.inf if one.silent_at is None else one.silent_at + store.watch.slept(one.sign)
    timed_out = math.inf if one.timed_out_at is None else one.timed_out_at + store.watch.slept(one.start)
    return min(silent_at, timed_out), silent_at <= timed_out


def _next_due(store: Tables) -> float | None:
    """Return the time at which the next live attempt will be overdue without a sign of life; ``None``:
    never. Stalls that no limit reaches back to are forgotten.
    """
    if store.cache.next_due is None:
        alive = [_Limits(*row) for row in store.db.all(_LIMITS, now=store.clock(), opened=store.opened)]
        store.watch.forget(min((min(one.sign, one.start) for one in alive), default=math.inf))
        store.cache.next_due = min((_due(store, one)[0] for one in alive), default=math.inf)
    return None if math.isinf(store.cache.next_due) else store.cache.next_due


async def expire_due(store: Tables) -> float | None:
    """End overdue attempts, for the timer. Return the seconds until the next attempt is overdue."""
    try:
        await store.write_once("expire", lambda: end_overdue(store, store.clock()))
        due = await store.writer.read(lambda: _next_due(store))
    except StoreError:
        _log.exception("overdue attempts could not be ended; the next try is in %g s", _RETRY_SECONDS)
        return _RETRY_SECONDS
    return None if due is None else due - store.clock()


def ensure_timer(store: Tables) -> None:
    """Set the timer for the attempts that run, if it is not set on this loop."""
    if not store.timer.armed and (due := _next_due(store)) is not None:
        store.timer.arm(due - store.clock())
        store.watch.start()
