"""Workers: the processes that run rollouts, their status and their current attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, func, select, update

from agentlightning.store import codec
from agentlightning.store.base import NotFound
from agentlightning.store.pages import check_limit
from agentlightning.store.sqlite.core import StoreCore
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import Upsert, compile_sql, given
from agentlightning.types import Worker

_w = schema.workers
_SET = compile_sql(
    Upsert(
        _w,
        ["worker_id"],
        lambda new: {
            "status": new.status,
            "last_heartbeat_time": new.last_heartbeat_time,
            "current_rollout_id": func.coalesce(new.current_rollout_id, _w.c.current_rollout_id),
            "current_attempt_id": func.coalesce(new.current_attempt_id, _w.c.current_attempt_id),
            "stats": func.coalesce(new.stats, _w.c.stats),
        },
    )
)
_FREE = compile_sql(
    update(_w)
    .where(_w.c.worker_id == bindparam("worker"), _w.c.current_attempt_id == bindparam("attempt"))
    .values(status="idle", current_rollout_id=None, current_attempt_id=None)
)
_QUERY = select(*_w.c).order_by(_w.c.worker_id)
_GET = compile_sql(_QUERY.where(given(_w.c.worker_id)))
_STATUSES = ("idle", "busy", "unknown")


class WorkerStore(StoreCore):
    """Processes that run rollouts."""

    def _set_worker(
        self,
        worker_id: str,
        status: str,
        now: float,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        stats: dict[str, Any] | None = None,
    ) -> None:
        self.db.execute(
            _SET,
            worker_id=worker_id,
            status=status,
            last_heartbeat_time=now,
            current_rollout_id=rollout_id,
            current_attempt_id=attempt_id,
            stats=None if stats is None else codec.pack(stats),
        )

    def _worker_busy(self, worker_id: str, rollout_id: str, attempt_id: str, now: float) -> None:
        self._set_worker(worker_id, "busy", now, rollout_id, attempt_id)

    def _worker_free(self, worker_id: str, attempt_id: str) -> None:
        self.db.execute(_FREE, worker=worker_id, attempt=attempt_id)

    async def update_worker(
        self,
        worker_id: str,
        status: str | None = None,
        stats: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Worker:
        """Register or update a worker: ``idle``, ``busy`` or ``unknown``."""
        _check_status(status)

        def work() -> Worker:
            known = self._worker(worker_id)
            now = self.clock()
            self._set_worker(worker_id, status or (known.status if known else "unknown"), now, stats=stats)
            found = self._worker(worker_id)
            assert found is not None
            return found

        return await self._write("update_worker", work, request_id, Worker)

    def _worker(self, worker_id: str) -> Worker | None:
        row = self.db.one(_GET, worker_id=worker_id)
        return None if row is None else _worker_of(row)

    async def get_worker_by_id(self, worker_id: str) -> Worker:
        """The worker, or :class:`NotFound`."""
        found = await self.writer.read(lambda: self._worker(worker_id))
        if found is None:
            raise NotFound(f"no worker {worker_id}")
        return found

    async def query_workers(
        self, *, status: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[Worker]:
        """All workers that ever registered, by id. ``after``: the last id of the page before."""
        check_limit(limit)
        _check_status(status)
        query = _QUERY if status is None else _QUERY.where(_w.c.status == status)
        query = query.limit(limit) if after is None else query.where(_w.c.worker_id > after).limit(limit)
        return [_worker_of(row) for row in await self.writer.read(lambda: self.db.all(compile_sql(query)))]


def _check_status(status: str | None) -> None:
    if status is not None and status not in _STATUSES:
        raise ValueError(f"status must be one of {', '.join(_STATUSES)}, not {status!r}")


def _worker_of(row: Sequence[Any]) -> Worker:
    return Worker(
        worker_id=row[0],
        status=row[1],
        last_heartbeat_time=row[2],
        current_rollout_id=row[3],
        current_attempt_id=row[4],
        heartbeat_stats={} if row[5] is None else codec.unpack(row[5]),
    )
