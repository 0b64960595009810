"""Runs: their info, the reports of their steps, the fingerprints of the rollouts that they trained, their
chain of links; and counts of events such as refused writes.

Invariants: a step that is run again (after a crash) replaces its report and all its fingerprints, in one
transaction; links are only added, each under the next number; a count only grows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, tuple_

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_count
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, read, write
from agentlightning.store.sql.database import given
from agentlightning.store.sql.rollouts import check_config
from agentlightning.types import AuditLink, RolloutConfig, RolloutFingerprint, StepReport

_r, _s, _e, _l = schema.runs, schema.steps, schema.fingerprints, schema.links
_GET_RUN = select(_r.c.info, _r.c.config).where(given(_r.c.run_id))
_GET_RUN_TO_CHANGE = _GET_RUN.with_for_update()
_RUNS = select(_r.c.run_id, _r.c.create_time, _r.c.update_time, _r.c.info).order_by(
    _r.c.create_time.desc(), _r.c.run_id.desc()
)
_CURSOR = select(_r.c.create_time).where(given(_r.c.run_id))
_LAST_LINK = select(func.max(_l.c.number)).where(given(_l.c.run_id))


@write
def add_run(store: Tables, run_id: str, info: dict[str, Any], config: RolloutConfig | None) -> None:
    check_config(config)
    known = store.db.one(_GET_RUN, run_id=run_id)
    blob, now = codec.pack(info), store.clock()
    packed = None if config is None else codec.pack(config)
    if known is None:
        times = {"create_time": now, "update_time": now}
        store.db.insert(_r, {"run_id": run_id, "info": blob, "config": packed, **times})
    elif known[0] != blob or packed not in (None, known[1]):
        raise Conflict(f"run {run_id} exists with other info: choose another id, or update_run")


@write
def update_run(store: Tables, run_id: str, info: dict[str, Any], config: RolloutConfig | None) -> None:
    check_config(config)
    known = store.db.one(_GET_RUN_TO_CHANGE, run_id=run_id)
    if known is None:
        raise NotFound(f"no run {run_id}")
    changes = {} if config is None else {"config": codec.pack(config)}
    merged = codec.pack({**codec.unpack(known[0], dict[str, Any]), **info})
    store.db.update(_r, {"run_id": run_id}, info=merged, update_time=store.clock(), **changes)


@read
def query_runs(store: Tables, limit: int, after: str | None) -> list[dict[str, Any]]:
    check_limit(limit)
    query = _RUNS.limit(limit)
    if after is not None:
        place = store.db.value(_CURSOR, run_id=after)
        if place is None:
            raise NotFound(f"after: no run {after}")
        query = query.where(tuple_(_r.c.create_time, _r.c.run_id) < tuple_(place, after))
    return [
        dict(codec.unpack(info, dict[str, Any]), run_id=i, create_time=created, update_time=updated)
        for i, created, updated, info in store.db.all(query)
    ]


@write
def add_step(
    store: Tables, report: StepReport, fingerprints: Sequence[RolloutFingerprint], link: AuditLink | None
) -> None:
    if link is not None and link.run_id != report.run_id:
        raise ValueError(f"the link is of run {link.run_id}, the step of run {report.run_id}")
    check_count("step", report.step)
    key = {"run_id": report.run_id, "step": report.step, "policy": report.policy}
    rows = [_fingerprint_row(one, key) for one in fingerprints]
    if len({fingerprint.rollout_id for fingerprint in fingerprints}) < len(fingerprints):
        raise ValueError(f"fingerprints: step {report.step} has one rollout twice")
    store.db.delete(_s, **key)
    store.db.insert(_s, {**key, "time": store.clock(), "report": codec.pack(report)})
    store.db.delete(_e, **key)
    store.db.insert(_e, *rows)
    if link is not None:
        _append_link(store, link)


@write
def add_link(store: Tables, link: AuditLink) -> None:
    _append_link(store, link)


def _append_link(store: Tables, link: AuditLink) -> None:
    last = store.db.value(_LAST_LINK, run_id=link.run_id)
    number = 0 if last is None else last + 1
    if link.number != number:
        raise Conflict(
            f"link {link.number} of run {link.run_id}: the next one is {number}; does another process "
            "train this run?"
        )
    store.db.insert(_l, {"run_id": link.run_id, "number": link.number, "link": codec.pack(link)})


@read
def query_links(store: Tables, run_id: str, limit: int | None, after: str | None) -> list[AuditLink]:
    check_limit(limit)
    query = select(_l.c.link).where(_l.c.run_id == run_id).order_by(_l.c.number).limit(limit)
    if after is not None:
        if not after.isdigit():
            raise no_place(after)
        query = query.where(_l.c.number > int(after))
    return [codec.unpack(row[0], AuditLink) for row in store.db.all(query)]


@read
def query_steps(store: Tables, run_id: str, limit: int | None, after: str | None) -> list[StepReport]:
    check_limit(limit)
    query = select(_s.c.report).where(_s.c.run_id == run_id).order_by(_s.c.step, _s.c.policy).limit(limit)
    if after is not None:
        query = query.where(tuple_(_s.c.step, _s.c.policy) > tuple_(*parse_cursor(after)))
    return [codec.unpack(row[0], StepReport) for row in store.db.all(query)]


def _fingerprint_row(one: RolloutFingerprint, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a fingerprint. Raise ``ValueError`` if it is a fingerprint of another step."""
    of = {"run_id": one.run_id, "step": one.step, "policy": one.policy}
    if of != step:
        place = "run {run_id}, step {step}, policy {policy}".format
        raise ValueError(f"the fingerprint of {one.rollout_id} is of {place(**of)}: not of {place(**step)}")
    return {**of, "rollout_id": one.rollout_id, "fingerprint": codec.pack(one)}


def parse_cursor(after: str) -> tuple[int, str]:
    """Return the step of a cursor, and the text behind it."""
    step, slash, rest = after.partition("/")
    if not slash or not step.lstrip("-").isdigit():
        raise no_place(after)
    return int(step), rest


def no_place(after: str) -> ValueError:
    return ValueError(f"after: {after!r} is no place in this list")


# ----------------------------------------------------------------------------------------------------- counts
_n = schema.counts.c
_COUNTS = select(_n.kind, _n.reason, func.sum(_n.n)).group_by(_n.kind, _n.reason)
_COUNTS_OF = _COUNTS.where(given(_n.rollout_id))


@write
def count(
    store: Tables, kind: str, reason: str, rollout_id: str | None, attempt_id: str | None, n: int
) -> None:
    check_count("n, by which a count grows,", n)
    store.add_count(kind, reason, rollout_id, attempt_id, n)


@read
def counts(store: Tables, rollout_id: str | None) -> dict[str, dict[str, int]]:
    query = _COUNTS if rollout_id is None else _COUNTS_OF
    out: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for kind, reason, n in store.db.all(query, rollout_id=rollout_id):
        out[kind][reason] = n
    return dict(out)
