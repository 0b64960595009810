"""Runs, and counts of events such as refused writes.

Invariant: a count only grows.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import bindparam, func, select, tuple_, update

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_count
from agentlightning.store.pages import check_limit
from agentlightning.store.sqlite.core import StoreCore
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given, insert_sql
from agentlightning.store.sqlite.queue.defaults import check_config
from agentlightning.types import RolloutConfig

_r, _n = schema.runs, schema.counts
_ADD_RUN = insert_sql(_r)
_GET_RUN = compile_sql(select(_r.c.info, _r.c.config).where(given(_r.c.run_id)))
_SET_RUN = compile_sql(update(_r).where(_r.c.run_id == bindparam("run")), "info", "config", "update_time")
_RUNS = select(_r.c.run_id, _r.c.create_time, _r.c.update_time, _r.c.info).order_by(
    _r.c.create_time.desc(), _r.c.run_id.desc()
)
_CURSOR = compile_sql(select(_r.c.create_time).where(given(_r.c.run_id)))
_SUMS = select(_n.c.kind, _n.c.reason, func.sum(_n.c.n)).group_by(_n.c.kind, _n.c.reason)
_COUNTS = compile_sql(_SUMS)
_COUNTS_OF = compile_sql(_SUMS.where(given(_n.c.rollout_id)))


class RunStore(StoreCore):
    """Runs and counts."""

    async def add_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        """Register a run; once, for the same id and info. ``config``: for rollouts of the run that have no
        configuration of their own.
        """
        check_config(config)

        def work() -> None:
            known = self.db.one(_GET_RUN, run_id=run_id)
            blob, now = codec.pack(info), self.clock()
            tried = None if config is None else codec.pack(config)
            if known is None:
                new = {"run_id": run_id, "info": blob, "config": tried}
                self.db.execute(_ADD_RUN, **new, create_time=now, update_time=now)
            elif known[0] != blob or tried not in (None, known[1]):
                raise Conflict(f"run {run_id} exists with other info: choose another id, or update_run")

        await self._write("add_run", work, request_id)

    async def update_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        """Merge ``info`` into a run's. ``config`` replaces the run's; ``None``: it stays."""
        check_config(config)

        def work() -> None:
            known = self.db.one(_GET_RUN, run_id=run_id)
            if known is None:
                raise NotFound(f"no run {run_id}")
            merged = {**codec.unpack(known[0], dict[str, Any]), **info}
            tried = known[1] if config is None else codec.pack(config)
            self.db.execute(
                _SET_RUN, run=run_id, info=codec.pack(merged), config=tried, update_time=self.clock()
            )

        await self._write("update_run", work, request_id)

    async def query_runs(self, limit: int = 100, *, after: str | None = None) -> list[dict[str, Any]]:
        """Runs, newest first: their info with ``run_id``, ``create_time`` and ``update_time``. ``after``: the
        last id of the page before.
        """
        check_limit(limit)

        def work() -> list[tuple[Any, ...]]:
            if after is None:
                return self.db.all(compile_sql(_RUNS.limit(limit)))
            place = self.db.one(_CURSOR, run_id=after)
            if place is None:
                raise NotFound(f"after: no run {after}")
            older = tuple_(_r.c.create_time, _r.c.run_id) < tuple_(place[0], after)
            return self.db.all(compile_sql(_RUNS.where(older).limit(limit)))

        rows = await self.writer.read(work)
        return [
            {
                **codec.unpack(info, dict[str, Any]),
                "run_id": run_id,
                "create_time": created,
                "update_time": updated,
            }
            for run_id, created, updated, info in rows
        ]

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
        check_count("n, by which a count grows,", n)
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
