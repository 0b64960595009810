"""Steps: the report of each, and seals of what it trained.

Invariant: a step run again (after a crash) replaces its earlier report and all its earlier seals, in one
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, select, tuple_
from sqlalchemy.dialects.sqlite import insert

from agentlightning.store import codec, schema
from agentlightning.store.base import NotFound
from agentlightning.store.core import Core
from agentlightning.store.db import inserting, sql
from agentlightning.store.pages import check_limit
from agentlightning.types import Seal, StepReport

_s, _e = schema.steps, schema.seals
_step = insert(_s)
_ADD_STEP = sql(
    _step.on_conflict_do_update(
        index_elements=["run_id", "step", "policy"],
        set_={"report": _step.excluded.report, "time": _step.excluded.time},
    )
)
_UNSEAL = sql(
    delete(_e).where(
        _e.c.run_id == bindparam("run_id"), _e.c.step == bindparam("step"), _e.c.policy == bindparam("policy")
    )
)
_SEAL = inserting(_e)
_SEALED = sql(
    select(_e.c.seq).where(
        _e.c.run_id == bindparam("run_id"),
        _e.c.step == bindparam("step"),
        _e.c.policy == bindparam("policy"),
        _e.c.rollout_id == bindparam("rollout_id"),
    )
)


class Steps(Core):
    """Reports and seals."""

    async def add_step(
        self, report: StepReport, seals: Sequence[Seal] = (), *, request_id: str | None = None
    ) -> None:
        """Store the report of a step with the seals of what it trained."""
        rows = [_row(report, seal) for seal in seals]
        if len({seal.rollout_id for seal in seals}) < len(seals):
            raise ValueError(f"seals: step {report.step} seals a rollout twice")

        def work() -> None:
            key = {"run_id": report.run_id, "step": report.step, "policy": report.policy}
            self.db.execute(_ADD_STEP, **key, time=self.clock(), report=codec.pack(report))
            self.db.execute(_UNSEAL, **key)
            self.db.many(_SEAL, rows)

        await self._write("add_step", work, request_id)

    async def query_steps(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[StepReport]:
        """The reports of a run, by step and policy. ``after``: ``<step>/<policy>`` of the page before."""
        check_limit(limit)
        query = select(_s.c.report).where(_s.c.run_id == run_id).order_by(_s.c.step, _s.c.policy)
        if after is not None:
            query = query.where(tuple_(_s.c.step, _s.c.policy) > tuple_(*_place(after, 2)))
        rows = await self.writer.read(lambda: self.db.all(sql(query.limit(limit))))
        return [codec.unpack(row[0], StepReport) for row in rows]

    async def query_seals(
        self,
        run_id: str,
        step: int | None = None,
        rollout_id: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[Seal]:
        """Seals of a run, by step, then in order of arrival. ``after``: ``<step>/<policy>/<rollout>`` of the
        page before.
        """
        check_limit(limit)
        query = select(_e.c.seal).where(_e.c.run_id == run_id).order_by(_e.c.step, _e.c.seq)
        if step is not None:
            query = query.where(_e.c.step == step)
        if rollout_id is not None:
            query = query.where(_e.c.rollout_id == rollout_id)
        if after is not None:
            query = query.where(tuple_(_e.c.step, _e.c.seq) > tuple_(_place(after, 2)[0], bindparam("at")))

        def work() -> list[tuple[Any, ...]]:
            given = {} if after is None else {"at": self._seal_place(run_id, after)}
            return self.db.all(sql(query.limit(limit)), **given)

        return [codec.unpack(row[0], Seal) for row in await self.writer.read(work)]

    def _seal_place(self, run_id: str, after: str) -> int:
        step, policy, rollout_id = _place(after, 3)
        row = self.db.one(_SEALED, run_id=run_id, step=step, policy=policy, rollout_id=rollout_id)
        if row is None:
            raise NotFound(f"after: run {run_id} has no seal {after}")
        return int(row[0])


def _row(report: StepReport, seal: Seal) -> dict[str, object]:
    if (seal.run_id, seal.step, seal.policy) != (report.run_id, report.step, report.policy):
        raise ValueError(
            f"the seal of {seal.rollout_id} is of run {seal.run_id}, step {seal.step}, policy {seal.policy}: "
            f"not of run {report.run_id}, step {report.step}, policy {report.policy}"
        )
    return {
        "run_id": seal.run_id,
        "step": seal.step,
        "policy": seal.policy,
        "rollout_id": seal.rollout_id,
        "seal": codec.pack(seal),
    }


def _place(after: str, parts: int) -> tuple[int | str, ...]:
    step, *rest = after.split("/")
    if parts == 3 and len(rest) >= 2:
        rest = ["/".join(rest[:-1]), rest[-1]]
    elif parts == 2:
        rest = ["/".join(rest)]
    if len(rest) != parts - 1 or not step.lstrip("-").isdigit():
        raise ValueError(f"after: {after!r} is no place in this list")
    return (int(step), *rest)
