"""Runs, and counts of events such as refused writes.

Invariant: a count only grows.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import func, select, tuple_

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_count
from agentlightning.store.pages import check_limit
from agentlightning.store.sqlite.core import StoreCore, read, write
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import given
from agentlightning.store.sqlite.queue.rollouts import check_config
from agentlightning.types import RolloutConfig

_r, _n = schema.runs, schema.counts
_GET_RUN = select(_r.c.info, _r.c.config).where(given(_r.c.run_id))
_RUNS = select(_r.c.run_id, _r.c.create_time, _r.c.update_time, _r.c.info).order_by(
    _r.c.create_time.desc(), _r.c.run_id.desc()
)
_CURSOR = select(_r.c.create_time).where(given(_r.c.run_id))
_SUMS = select(_n.c.kind, _n.c.reason, func.sum(_n.c.n)).group_by(_n.c.kind, _n.c.reason)
_COUNTS = _SUMS
_COUNTS_OF = _SUMS.where(given(_n.c.rollout_id))


class RunStore(StoreCore):
    """Runs and counts."""

    @write
    def add_run(
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
        known = self.db.one(_GET_RUN, run_id=run_id)
        blob, now = codec.pack(info), self.clock()
        packed = None if config is None else codec.pack(config)
        if known is None:
            times = {"create_time": now, "update_time": now}
            self.db.insert(_r, {"run_id": run_id, "info": blob, "config": packed, **times})
        elif known[0] != blob or packed not in (None, known[1]):
            raise Conflict(f"run {run_id} exists with other info: choose another id, or update_run")

    @write
    def update_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        """Merge ``info`` into a run's. ``config`` replaces the run's; ``None``: it stays."""
        check_config(config)
        known = self.db.one(_GET_RUN, run_id=run_id)
        if known is None:
            raise NotFound(f"no run {run_id}")
        changes = {} if config is None else {"config": codec.pack(config)}
        merged = codec.pack({**codec.unpack(known[0], dict[str, Any]), **info})
        self.db.update(_r, {"run_id": run_id}, info=merged, update_time=self.clock(), **changes)

    @read
    def query_runs(self, limit: int = 100, *, after: str | None = None) -> list[dict[str, Any]]:
        """Return runs, newest first: their info with ``run_id``, ``create_time`` and ``update_time``.
        ``after``: the last id of the page before.
        """
        check_limit(limit)
        query = _RUNS.limit(limit)
        if after is not None:
            place = self.db.value(_CURSOR, run_id=after)
            if place is None:
                raise NotFound(f"after: no run {after}")
            query = query.where(tuple_(_r.c.create_time, _r.c.run_id) < tuple_(place, after))
        return [
            {
                **codec.unpack(info, dict[str, Any]),
                "run_id": run_id,
                "create_time": created,
                "update_time": updated,
            }
            for run_id, created, updated, info in self.db.all(query)
        ]

    @write
    def count(
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
        self._count(kind, reason, rollout_id, attempt_id, n)

    @read
    def counts(self, rollout_id: str | None = None) -> dict[str, dict[str, int]]:
        """Return kind → reason → n, of one rollout or (``None``) of everything."""
        query = _COUNTS if rollout_id is None else _COUNTS_OF
        out: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for kind, reason, n in self.db.all(query, rollout_id=rollout_id):
            out[kind][reason] = n
        return dict(out)
