"""Steps: their reports, the seals of the rollouts they trained, and the run's chain of links.

Invariants: a step that is run again (after a crash) replaces its report and all its seals, in one
transaction; links are only added, each under the next number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, select, tuple_

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_count
from agentlightning.store.pages import check_limit
from agentlightning.store.sqlite.core import StoreCore
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import Upsert, compile_sql, given, insert_sql
from agentlightning.types import AuditLink, RolloutFingerprint, StepReport

_s, _e, _l = schema.steps, schema.seals, schema.links
_ADD_STEP = compile_sql(
    Upsert(_s, ["run_id", "step", "policy"], lambda new: {"report": new.report, "time": new.time})
)
_UNSEAL = compile_sql(delete(_e).where(given(_e.c.run_id, _e.c.step, _e.c.policy)))
_SEAL = insert_sql(_e)
_LINK = insert_sql(_l)
_LAST_LINK = compile_sql(select(func.max(_l.c.number)).where(given(_l.c.run_id)))
_SEALED = compile_sql(
    select(_e.c.seq).where(
        given(_e.c.run_id, _e.c.step, _e.c.policy, _e.c.rollout_id),
    )
)


class StepStore(StoreCore):
    """Reports and seals."""

    async def add_step(
        self,
        report: StepReport,
        seals: Sequence[RolloutFingerprint] = (),
        *,
        link: AuditLink | None = None,
        request_id: str | None = None,
    ) -> None:
        """Store a step's report, the seals of the rollouts it trained, and its link in the run's chain."""
        if link is not None and link.run_id != report.run_id:
            raise ValueError(f"the link is of run {link.run_id}, the step of run {report.run_id}")
        check_count("step", report.step)
        rows = [_seal_row(report, seal) for seal in seals]
        if len({seal.rollout_id for seal in seals}) < len(seals):
            raise ValueError(f"seals: step {report.step} seals a rollout twice")

        def work() -> None:
            key = {"run_id": report.run_id, "step": report.step, "policy": report.policy}
            self.db.execute(_ADD_STEP, **key, time=self.clock(), report=codec.pack(report))
            self.db.execute(_UNSEAL, **key)
            self.db.many(_SEAL, rows)
            if link is not None:
                self._append_link(link)

        await self._write("add_step", work, request_id)

    async def add_link(self, link: AuditLink, *, request_id: str | None = None) -> None:
        """Add a link to the end of a run's chain; ``Conflict`` if its number is not the next."""
        await self._write("add_link", lambda: self._append_link(link), request_id)

    def _append_link(self, link: AuditLink) -> None:
        last = self.db.one(_LAST_LINK, run_id=link.run_id)
        number = 0 if last is None or last[0] is None else int(last[0]) + 1
        if link.number != number:
            raise Conflict(
                f"link {link.number} of run {link.run_id}: the next one is {number}; does another process "
                "train this run?"
            )
        self.db.execute(_LINK, run_id=link.run_id, number=link.number, link=codec.pack(link))

    async def query_links(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[AuditLink]:
        """The chain of a run, oldest first. ``after``: the number of the last link of the page before."""
        check_limit(limit)
        query = select(_l.c.link).where(_l.c.run_id == run_id).order_by(_l.c.number)
        if after is not None:
            if not after.isdigit():
                raise ValueError(f"after: {after!r} is no place in this list")
            query = query.where(_l.c.number > int(after))
        rows = await self.writer.read(lambda: self.db.all(compile_sql(query.limit(limit))))
        return [codec.unpack(row[0], AuditLink) for row in rows]

    async def query_steps(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[StepReport]:
        """The reports of a run, by step and policy. ``after``: ``<step>/<policy>`` of the page before."""
        check_limit(limit)
        query = select(_s.c.report).where(_s.c.run_id == run_id).order_by(_s.c.step, _s.c.policy)
        if after is not None:
            query = query.where(tuple_(_s.c.step, _s.c.policy) > tuple_(*_parse_cursor(after, 2)))
        rows = await self.writer.read(lambda: self.db.all(compile_sql(query.limit(limit))))
        return [codec.unpack(row[0], StepReport) for row in rows]

    async def query_seals(
        self,
        run_id: str,
        step: int | None = None,
        rollout_id: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[RolloutFingerprint]:
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
            query = query.where(
                tuple_(_e.c.step, _e.c.seq) > tuple_(_parse_cursor(after, 2)[0], bindparam("at"))
            )

        def work() -> list[tuple[Any, ...]]:
            given = {} if after is None else {"at": self._seal_seq(run_id, after)}
            return self.db.all(compile_sql(query.limit(limit)), **given)

        return [codec.unpack(row[0], RolloutFingerprint) for row in await self.writer.read(work)]

    def _seal_seq(self, run_id: str, after: str) -> int:
        step, policy, rollout_id = _parse_cursor(after, 3)
        row = self.db.one(_SEALED, run_id=run_id, step=step, policy=policy, rollout_id=rollout_id)
        if row is None:
            raise NotFound(f"after: run {run_id} has no seal {after}")
        return int(row[0])


def _seal_row(report: StepReport, seal: RolloutFingerprint) -> dict[str, object]:
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


def _parse_cursor(after: str, parts: int) -> tuple[int | str, ...]:
    step, *rest = after.split("/")
    if parts == 3 and len(rest) >= 2:
        rest = ["/".join(rest[:-1]), rest[-1]]
    elif parts == 2:
        rest = ["/".join(rest)]
    if len(rest) != parts - 1 or not step.lstrip("-").isdigit():
        raise ValueError(f"after: {after!r} is no place in this list")
    return (int(step), *rest)
