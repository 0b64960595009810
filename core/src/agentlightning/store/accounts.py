"""Accounts: runs and their steps, counts of what went wrong, statistics of the whole store.

Invariant: a count only grows; the report of a step run again (after a crash) replaces the earlier one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.sqlite import insert

from agentlightning.store import codec, schema
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.core import Core
from agentlightning.store.db import inserting, sql
from agentlightning.types import StepReport

_r, _s, _n = schema.runs, schema.steps, schema.counts
_ADD_RUN = inserting(_r)
_GET_RUN = sql(select(_r.c.info).where(_r.c.run_id == bindparam("run_id")))
_SET_RUN = sql(update(_r).where(_r.c.run_id == bindparam("run")), "info", "update_time")
_RUNS = sql(
    select(_r.c.run_id, _r.c.create_time, _r.c.update_time, _r.c.info)
    .order_by(_r.c.create_time.desc(), _r.c.run_id.desc())
    .limit(bindparam("n"))
)
_step = insert(_s)
_ADD_STEP = sql(
    _step.on_conflict_do_update(
        index_elements=["run_id", "step", "policy"],
        set_={"report": _step.excluded.report, "time": _step.excluded.time},
    )
)
_STEPS = sql(select(_s.c.report).where(_s.c.run_id == bindparam("run_id")).order_by(_s.c.step, _s.c.policy))
_SUMS = select(_n.c.kind, _n.c.reason, func.sum(_n.c.n)).group_by(_n.c.kind, _n.c.reason)
_COUNTS = sql(_SUMS)
_COUNTS_OF = sql(_SUMS.where(_n.c.rollout_id == bindparam("rollout_id")))
_BY_STATUS = {
    name: sql(select(table.c.status, func.count()).group_by(table.c.status))
    for name, table in (
        ("rollouts", schema.rollouts),
        ("attempts", schema.attempts),
        ("workers", schema.workers),
    )
}
_TOTALS = {
    name: sql(select(func.count()).select_from(table))
    for name, table in (
        ("calls", schema.calls),
        ("spans", schema.spans),
        ("resources", schema.resources),
        ("runs", _r),
    )
}


class Accounts(Core):
    """Runs, steps, counts."""

    async def add_run(self, run_id: str, info: dict[str, Any], *, request_id: str | None = None) -> None:
        """Register a run. The same id with the same info is done already."""

        def work() -> None:
            known = self.db.one(_GET_RUN, run_id=run_id)
            blob, now = codec.pack(info), self.clock()
            if known is None:
                self.db.execute(_ADD_RUN, run_id=run_id, create_time=now, update_time=now, info=blob)
            elif known[0] != blob:
                raise Conflict(f"run {run_id} exists with other info: choose another id, or update_run")

        await self._write("add_run", work, request_id)

    async def update_run(self, run_id: str, info: dict[str, Any], *, request_id: str | None = None) -> None:
        """Merge ``info`` into a run's."""

        def work() -> None:
            known = self.db.one(_GET_RUN, run_id=run_id)
            if known is None:
                raise NotFound(f"no run {run_id}")
            merged = {**codec.unpack(known[0], dict[str, Any]), **info}
            self.db.execute(_SET_RUN, run=run_id, info=codec.pack(merged), update_time=self.clock())

        await self._write("update_run", work, request_id)

    async def query_runs(self, limit: int = 100) -> list[dict[str, Any]]:
        """Runs, newest first: their info with ``run_id``, ``create_time`` and ``update_time``."""
        rows = await self.writer.read(lambda: self.db.all(_RUNS, n=limit))
        return [
            {
                **codec.unpack(info, dict[str, Any]),
                "run_id": run_id,
                "create_time": created,
                "update_time": updated,
            }
            for run_id, created, updated, info in rows
        ]

    async def add_step(self, report: StepReport, *, request_id: str | None = None) -> None:
        """Store the report of a step."""

        def work() -> None:
            self.db.execute(
                _ADD_STEP,
                run_id=report.run_id,
                step=report.step,
                policy=report.policy,
                time=self.clock(),
                report=codec.pack(report),
            )

        await self._write("add_step", work, request_id)

    async def query_steps(self, run_id: str) -> list[StepReport]:
        """The reports of a run, by step."""
        rows = await self.writer.read(lambda: self.db.all(_STEPS, run_id=run_id))
        return [codec.unpack(row[0], StepReport) for row in rows]

    async def count(
        self,
        kind: str,
        reason: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        n: int = 1,
        request_id: str | None = None,
    ) -> None:
        """Add ``n`` to the count of ``kind`` for ``reason``."""
        if n < 0:
            raise ValueError(f"a count only grows: n must not be negative, not {n}")
        await self._write("count", lambda: self._count(kind, reason, rollout_id, attempt_id, n), request_id)

    async def counts(self, rollout_id: str | None = None) -> dict[str, dict[str, int]]:
        """Kind → reason → n, of one rollout or (``None``) of everything."""

        def work() -> list[tuple[Any, ...]]:
            return (
                self.db.all(_COUNTS) if rollout_id is None else self.db.all(_COUNTS_OF, rollout_id=rollout_id)
            )

        out: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for kind, reason, n in await self.writer.read(work):
            out[kind][reason] = n
        return dict(out)

    async def statistics(self) -> dict[str, Any]:
        """Numbers of everything: rollouts, attempts and workers by status, totals, size of the file."""

        def work() -> dict[str, Any]:
            found: dict[str, Any] = {name: dict(self.db.all(query)) for name, query in _BY_STATUS.items()}
            for name, query in _TOTALS.items():
                row = self.db.one(query)
                found[name] = 0 if row is None else row[0]
            found["bytes"] = self.db.bytes()
            found["schema_version"] = schema.SCHEMA_VERSION
            return found

        return await self.writer.read(work)
