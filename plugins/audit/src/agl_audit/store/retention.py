"""Retention: deletes finished runs, run by run, a few rollouts in each transaction.

Other requests go on between two transactions. Freed pages are used before the database grows; it does not
shrink. Invariants: a run with a live attempt is not touched. An interrupted deletion goes on where it stopped
when it is asked for again, because the run's own row is deleted last.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Select, bindparam, case, delete, func, literal_column, null, select, text, union_all

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_count, check_seconds
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, everywhere
from agentlightning.store.sql.database import InJson, given

_ROLLOUTS_PER_TRANSACTION = 25
"""Rollouts deleted in one transaction, with their attempts, spans, calls, counts and fingerprints."""
_r, _a, _n, _k, _t = schema.rollouts, schema.attempts, schema.runs, schema.resources, schema.steps
_OF = given(_r.c.run_id)
_KNOWN = select(_n.c.run_id).where(given(_n.c.run_id))
_LIVE = (
    select(_a.c.attempt_id, _a.c.worker_id)
    .join(_r, _r.c.rollout_id == _a.c.rollout_id)
    .where(_OF, text(f"attempts.{schema.OPEN_ATTEMPT} AND rollouts.status IN ('preparing', 'running')"))
    .with_hint(_a, "INDEXED BY attempts_held", "sqlite")
    .limit(1)
)
_WAITING = select(_r.c.rollout_id).where(_OF, text(f"rollouts.{schema.QUEUED}")).with_for_update()
_NEXT = (
    select(_r.c.rollout_id, _r.c.seq)
    .where(_r.c.seq > bindparam("last"))
    .order_by(_r.c.seq)
    .limit(_ROLLOUTS_PER_TRANSACTION)
    .with_for_update()  # no attempt of them writes any more
)
_OF_RUN = _NEXT.where(_OF)
_WITHOUT_RUN = _NEXT.where(_r.c.run_id.is_(None), _r.c.end_time < bindparam("before"))
_USED = select(_r.c.resources_id).where(_r.c.resources_id.is_not(None)).distinct()
_LATEST = select(_k.c.resources_id).order_by(_k.c.seq.desc()).limit(1).scalar_subquery()
_UNUSED = delete(_k).where(
    InJson(_k.c.resources_id), _k.c.resources_id.not_in(_USED), _k.c.resources_id != _LATEST
)
_NOTED = select(schema.meta.c.value).where(given(schema.meta.c.key))
_DELETE = {
    table.name: delete(table).where(InJson(table.c.rollout_id))
    for table in (schema.spans, schema.calls, schema.counts, schema.fingerprints, _a, _r)
}
_TABLES_OF_RUN = (schema.fingerprints, schema.steps, schema.links, schema.notes, _n)
_open = func.sum(case((_r.c.status.in_(("queuing", "preparing", "running", "requeuing")), 1), else_=0))
_activity = union_all(
    select(
        _r.c.run_id,
        func.min(_r.c.start_time).label("created"),
        func.max(func.coalesce(_r.c.end_time, _r.c.start_time)).label("active"),
        _open.label("unfinished"),
    ).group_by(_r.c.run_id),
    select(_n.c.run_id, _n.c.create_time, _n.c.update_time, literal_column("0")),
    select(_t.c.run_id, null(), func.max(_t.c.time), literal_column("0")).group_by(_t.c.run_id),
).subquery()
_created = func.min(_activity.c.created)
_RUNS = (
    select(_activity.c.run_id, func.max(_activity.c.active), func.sum(_activity.c.unfinished))
    .where(_activity.c.run_id.is_not(None))
    .group_by(_activity.c.run_id)
    .having(_created.is_not(None))
    .order_by(_created, _activity.c.run_id)
)
"""Run → its last activity, and the number of its rollouts that have not ended; the oldest run first."""


@everywhere
async def delete_run(store: Tables, run_id: str, *, request_id: str | None = None) -> dict[str, int]:
    """Delete a run with everything it made. Return the number of deleted rows by table.

    Its queued rollouts are deleted first. ``Conflict`` if it has a live attempt. Resources that other
    rollouts use, and the latest resources, stay.
    """
    if (known := await _answer(store, "delete_run", request_id)) is not None:
        return known
    deleted = Counter(await store.write_once("delete_run", lambda: _begin_deletion(store, run_id)))
    deleted.update(await _delete_all(store, _OF_RUN, run_id=run_id))

    def last() -> dict[str, int]:
        found = _delete_run_rows(store, run_id)
        return {name: deleted[name] + found.get(name, 0) for name in {**deleted, **found}}

    return await store.write_once("delete_run", last, request_id, dict[str, int])


async def _answer(store: Tables, method: str, request_id: str | None) -> dict[str, int] | None:
    """Return the remembered answer of a request that was sent before."""
    found = await store.writer.read(lambda: store.find_answer(method, request_id))
    return None if found is None else dict(codec.unpack(found, dict[str, int]))


@everywhere
async def prune(
    store: Tables,
    *,
    older_than: float | None = None,
    keep_runs: int | None = None,
    run_id: str | None = None,
    request_id: str | None = None,
) -> dict[str, int]:
    """Delete finished runs: this one, or all older than ``older_than`` seconds and not among the newest
    ``keep_runs``. Return the number of deleted rows by table; ``kept``: runs that are due, but have work
    queued or under way.

    ``older_than`` also deletes rollouts of no run that ended before.
    """
    if run_id is not None:
        if older_than is not None or keep_runs is not None:
            raise ValueError("prune: give run_id alone, or older_than and keep_runs")
        return await delete_run(store, run_id, request_id=request_id)
    if older_than is None and keep_runs is None:
        raise ValueError("prune: say what to delete: run_id, older_than (seconds), or keep_runs")
    check_seconds("older_than", older_than)
    check_count("keep_runs", keep_runs)
    if (known := await _answer(store, "prune", request_id)) is not None:
        return known
    deleted: Counter[str] = Counter()
    chosen, kept = await store.writer.read(lambda: _choose(store, older_than, keep_runs))
    for chosen_id in chosen:
        try:
            deleted.update(await delete_run(store, chosen_id))
        except (Conflict, NotFound):  # it got a live attempt, or was deleted, meanwhile
            kept += 1
    if older_than is not None:
        deleted.update(await _delete_all(store, _WITHOUT_RUN, before=store.clock() - older_than))
    return await store.write_once("prune", lambda: {**deleted, "kept": kept}, request_id, dict[str, int])


def _choose(store: Tables, older_than: float | None, keep_runs: int | None) -> tuple[list[str], int]:
    """Return the runs to delete, oldest first, and the number of due runs that are not finished."""
    due = store.db.all(_RUNS)
    if keep_runs is not None:
        due = due[: max(0, len(due) - keep_runs)]
    if older_than is not None:
        limit = store.clock() - older_than
        due = [row for row in due if row[1] <= limit]
    finished = [run_id for run_id, _, unfinished in due if not unfinished]
    return finished, len(due) - len(finished)


def _begin_deletion(store: Tables, run_id: str) -> dict[str, int]:
    """Note which resources the run used, and delete its queued rollouts, in one transaction: no worker
    may lease a rollout that is about to be deleted.
    """
    if not (store.db.one(_KNOWN, run_id=run_id) or store.db.one(_OF_RUN, run_id=run_id, last=-1)):
        raise NotFound(f"no run {run_id}")
    _refuse_live(store, run_id)
    used = {row[0] for row in store.db.all(_USED.where(_OF), run_id=run_id)}
    used.update(json.loads(_take_note(store, run_id)))
    store.db.insert(schema.meta, {"key": f"deleting:{run_id}", "value": json.dumps(sorted(used))})
    return _delete(store, [row[0] for row in store.db.all(_WAITING, run_id=run_id)])


def _take_note(store: Tables, run_id: str) -> str:
    """Return the JSON list of the resources that a run under deletion used, and delete that note."""
    key = f"deleting:{run_id}"
    noted = store.db.value(_NOTED, key=key)
    store.db.delete(schema.meta, key=key)
    return "[]" if noted is None else str(noted)


def _delete_run_rows(store: Tables, run_id: str) -> dict[str, int]:
    deleted = {table.name: store.db.delete(table, run_id=run_id) for table in _TABLES_OF_RUN}
    return {**deleted, "resources": store.db.execute(_UNUSED, ids=_take_note(store, run_id))}


def _refuse_live(store: Tables, run_id: str | None) -> None:
    live = store.db.one(_LIVE, run_id=run_id)
    if live is not None:
        raise Conflict(
            f"run {run_id} is at work: attempt {live[0]} of worker {live[1]} is live. Let it end, or "
            "cancel its rollouts, then delete the run"
        )


async def _delete_all(store: Tables, query: Select[Any], **values: Any) -> Counter[str]:
    """Delete the rollouts of a query, a few in each transaction."""
    deleted: Counter[str] = Counter()
    last = -1
    while True:
        piece = partial(_delete_piece, store, query, last=last, **values)
        done, last = await store.write_once("prune", piece)
        if not done["rollouts"]:
            return deleted
        deleted.update(done)


def _delete_piece(store: Tables, query: Select[Any], **values: Any) -> tuple[dict[str, int], int]:
    """Delete the next rollouts of a query. Return the number of deleted rows, and the last rollout."""
    rows = store.db.all(query, **values)
    _refuse_live(store, values.get("run_id"))
    return _delete(store, [row[0] for row in rows]), rows[-1][1] if rows else values["last"]


def _delete(store: Tables, ids: Sequence[str]) -> dict[str, int]:
    """Delete rollouts with everything they made. Return the number of deleted rows by table."""
    for rollout_id in ids:
        store.cache.attempts.pop(rollout_id, None)
        store.waiters.notify_ended(rollout_id)
    which = json.dumps(ids)
    return {name: store.db.execute(statement, ids=which) for name, statement in _DELETE.items()}
