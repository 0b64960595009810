"""Statistics of a store or of one run: sums over columns and indices; no record is read."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, bindparam, func, select

from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, everywhere, read
from agentlightning.store.sql.database import given, least

_r, _a, _c, _s = schema.rollouts, schema.attempts, schema.calls, schema.spans
QUANTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
"""Name → percentile."""


def _both(query: Select[Any], table: Table) -> tuple[Select[Any], Select[Any]]:
    """Return a query over all runs, and the same over one run."""
    of_run = query if table is _r else query.join(_r, _r.c.rollout_id == table.c.rollout_id)
    return query, of_run.where(given(_r.c.run_id))


def _seconds(value: ColumnElement[Any], table: Table) -> Select[Any]:
    """Select rank, count, mean and value at the quantiles of a duration, in one run."""
    ranked = (
        select(
            func.row_number().over(order_by=value).label("rank"),
            func.count().over().label("n"),
            func.avg(value).over().label("mean"),
            value.label("value"),
        )
        .select_from(table)
        .join(_r, _r.c.rollout_id == table.c.rollout_id)
        .where(given(_r.c.run_id), value.is_not(None))
        .subquery()
    )
    wanted = [_rank(ranked.c.n, share) for share in QUANTILES.values()]
    return select(*ranked.c).where(ranked.c.rank.in_(wanted))


def _rank(n: Any, share: int) -> Any:
    """Return the smallest rank that has at least ``share`` per cent of ``n`` values at or below it."""
    return (n * share + 99) // 100


_STATUS = {
    name: _both(select(table.c.status, func.count()).select_from(table).group_by(table.c.status), table)
    for name, table in (("rollouts", _r), ("attempts", _a))
}
_CALLS = _both(
    select(
        func.count(),
        func.coalesce(func.sum(_c.c.prompt_tokens), 0),
        func.coalesce(func.sum(_c.c.completion_tokens), 0),
        func.coalesce(func.sum(_c.c.size), 0),
    ).select_from(_c),
    _c,
)
_SPANS = _both(select(func.count()).select_from(_s), _s)
_end = func.coalesce(_a.c.end_time, bindparam("now"))
_busy = func.sum(_end - least(_a.c.start_time, _end))  # never negative, also if the clock was set back
_WORK = _both(
    select(_a.c.worker_id, _a.c.status, func.count(), _busy)
    .where(_a.c.worker_id.is_not(None))
    .group_by(_a.c.worker_id, _a.c.status)
    .order_by(_a.c.worker_id, _a.c.status),
    _a,
)
_SECONDS = {
    "call_seconds": _seconds(_c.c.seconds, _c),
    "attempt_seconds": _seconds(_a.c.end_time - _a.c.start_time, _a),
}
_WORKERS = select(schema.workers.c.status, func.count()).group_by(schema.workers.c.status)
_RESOURCES = select(func.count()).select_from(schema.resources)
_RUNS = select(func.count()).select_from(schema.runs)


@everywhere
@read
def statistics(store: Tables, run_id: str | None = None) -> dict[str, Any]:
    """Return rollouts and attempts by status, calls, spans, tokens, and the work of each worker.

    For one run also quantiles of call and attempt seconds, and ``call_bytes``; for the whole store also
    workers by status, resources, runs, and the size of the file (``free_bytes``: free pages in it).
    ``work``: worker → its ``attempts`` by status and its ``busy_seconds``. An unknown run has zeros.
    """
    which, asked = int(run_id is not None), {"run_id": run_id, "now": store.clock()}
    found: dict[str, Any] = {
        name: dict(store.db.all(queries[which], **asked)) for name, queries in _STATUS.items()
    }
    calls, prompt, completion, size = store.db.all(_CALLS[which], **asked)[0]
    found["calls"], found["spans"] = calls, store.db.value(_SPANS[which], **asked)
    found["tokens"] = {"prompt": prompt, "completion": completion}
    found["work"] = _work(store.db.all(_WORK[which], **asked))
    if run_id is None:
        found["workers"] = dict(store.db.all(_WORKERS))
        found["resources"], found["runs"] = store.db.value(_RESOURCES), store.db.value(_RUNS)
        found["bytes"], found["free_bytes"] = store.db.sizes()
        found["schema_version"] = schema.SCHEMA_VERSION
    else:
        found["call_bytes"] = size
        found.update((name, _quantiles(store, query, run_id)) for name, query in _SECONDS.items())
    return found


def _quantiles(store: Tables, query: Select[Any], run_id: str) -> dict[str, float]:
    rows = store.db.all(query, run_id=run_id)
    if not rows:
        return {}
    by_rank = {row[0]: row[3] for row in rows}
    _, n, mean, _ = rows[0]
    return {"mean": mean, **{name: by_rank[_rank(n, share)] for name, share in QUANTILES.items()}}


def _work(rows: list[tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    done: defaultdict[str, dict[str, Any]] = defaultdict(lambda: {"attempts": {}, "busy_seconds": 0.0})
    for worker_id, status, n, seconds in rows:
        done[worker_id]["attempts"][status] = n
        done[worker_id]["busy_seconds"] += seconds
    return dict(done)
