"""Workers: who runs attempts, as leases and signs of life in the store show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from agentlightning.store import codec
from agentlightning.store.base import NotFound
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.attempts import set_worker
from agentlightning.store.sql.core import Tables, everywhere, read, write
from agentlightning.store.sql.database import given
from agentlightning.types import Worker

_w = schema.workers
_QUERY = select(*_w.c).order_by(_w.c.worker_id)
_WORKER = _QUERY.where(given(_w.c.worker_id))
_STATUSES = ("idle", "busy", "unknown")


@everywhere
@write
def update_worker(
    store: Tables, worker_id: str, status: str | None = None, stats: dict[str, Any] | None = None
) -> Worker:
    """Register or update a worker: ``idle``, ``busy`` or ``unknown``."""
    _check_status(status)
    known = store.db.one(_WORKER, worker_id=worker_id)
    set_worker(store, worker_id, status or (known[1] if known else "unknown"), stats)
    return _worker(store, worker_id)


def _worker(store: Tables, worker_id: str) -> Worker:
    row = store.db.one(_WORKER, worker_id=worker_id)
    if row is None:
        raise NotFound(f"no worker {worker_id}")
    return _worker_from_row(row)


@everywhere
@read
def get_worker_by_id(store: Tables, worker_id: str) -> Worker:
    """Return the worker, or raise :class:`NotFound`."""
    return _worker(store, worker_id)


@everywhere
@read
def query_workers(
    store: Tables, *, status: str | None = None, limit: int | None = None, after: str | None = None
) -> list[Worker]:
    """Return all workers that ever registered, by id. ``after``: the last id of the page before."""
    check_limit(limit)
    _check_status(status)
    query = _QUERY.limit(limit)
    if status is not None:
        query = query.where(_w.c.status == status)
    if after is not None:
        query = query.where(_w.c.worker_id > after)
    return [_worker_from_row(row) for row in store.db.all(query)]


def _check_status(status: str | None) -> None:
    if status is not None and status not in _STATUSES:
        raise ValueError(f"status must be one of {', '.join(_STATUSES)}, not {status!r}")


def _worker_from_row(row: Sequence[Any]) -> Worker:
    found = dict(zip(_w.c.keys(), row, strict=True))
    stats = found.pop("stats")
    return Worker(**found, heartbeat_stats={} if stats is None else codec.unpack(stats))
