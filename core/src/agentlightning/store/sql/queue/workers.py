"""Workers: the processes that run rollouts, their status and their current attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, select, update

from agentlightning.store import codec
from agentlightning.store.base import NotFound
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import StoreCore, read, write
from agentlightning.store.sql.statements import given
from agentlightning.types import Worker

_w = schema.workers
_FREE = (
    update(_w)
    .where(_w.c.worker_id == bindparam("worker"), _w.c.current_attempt_id == bindparam("attempt"))
    .values(status="idle", current_rollout_id=None, current_attempt_id=None)
)
_QUERY = select(*_w.c).order_by(_w.c.worker_id)
_GET = _QUERY.where(given(_w.c.worker_id))
_STATUSES = ("idle", "busy", "unknown")


class WorkerStore(StoreCore):
    """Processes that run rollouts."""

    def _set_worker(
        self, worker_id: str, status: str, stats: dict[str, Any] | None = None, **attempt: str
    ) -> None:
        """Update a worker, or register it. ``attempt``: its current rollout and attempt, if they change."""
        columns = {"status": status, "last_heartbeat_time": self.clock(), **attempt}
        if stats is not None:
            columns["stats"] = codec.pack(stats)
        if not self.db.update(_w, {"worker_id": worker_id}, **columns):
            self.db.insert(_w, {"worker_id": worker_id, **columns})

    def _worker_free(self, worker_id: str, attempt_id: str) -> None:
        self.db.execute(_FREE, worker=worker_id, attempt=attempt_id)

    @write
    def update_worker(
        self,
        worker_id: str,
        status: str | None = None,
        stats: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Worker:
        """Register or update a worker: ``idle``, ``busy`` or ``unknown``."""
        _check_status(status)
        known = self.db.one(_GET, worker_id=worker_id)
        self._set_worker(worker_id, status or (known[1] if known else "unknown"), stats)
        return self._worker(worker_id)

    def _worker(self, worker_id: str) -> Worker:
        row = self.db.one(_GET, worker_id=worker_id)
        if row is None:
            raise NotFound(f"no worker {worker_id}")
        return _worker_from_row(row)

    @read
    def get_worker_by_id(self, worker_id: str) -> Worker:
        """Return the worker, or raise :class:`NotFound`."""
        return self._worker(worker_id)

    @read
    def query_workers(
        self, *, status: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[Worker]:
        """Return all workers that ever registered, by id. ``after``: the last id of the page before."""
        check_limit(limit)
        _check_status(status)
        query = _QUERY.limit(limit)
        if status is not None:
            query = query.where(_w.c.status == status)
        if after is not None:
            query = query.where(_w.c.worker_id > after)
        return [_worker_from_row(row) for row in self.db.all(query)]


def _check_status(status: str | None) -> None:
    if status is not None and status not in _STATUSES:
        raise ValueError(f"status must be one of {', '.join(_STATUSES)}, not {status!r}")


def _worker_from_row(row: Sequence[Any]) -> Worker:
    found = dict(zip(_w.c.keys(), row, strict=True))
    stats = found.pop("stats")
    return Worker(**found, heartbeat_stats={} if stats is None else codec.unpack(stats))
