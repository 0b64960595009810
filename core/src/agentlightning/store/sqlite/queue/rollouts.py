"""Rollouts: made, queried, and their status. Leases are in :mod:`.leases`.

Invariants: a final status never changes, except by a requeue (:mod:`.requeue`); a rollout id names one
content; a rollout keeps the version of the resources that was the newest when it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import bindparam, func, select, update

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import check_count
from agentlightning.store.pages import SortOrder, check_limit, check_order
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import InJson, compile_sql, given, insert_sql
from agentlightning.store.sqlite.queue.defaults import Pin, RolloutDefaults, check_config
from agentlightning.store.sqlite.queue.ids import time_ordered_id
from agentlightning.types import Mode, Rollout, RolloutConfig, RolloutStatus

_t = schema.rollouts
_INTERNAL_COLUMNS = ("seq", "timeout_seconds", "unresponsive_seconds", "forgiven")
ROLLOUT_COLUMNS = [c for c in _t.c if c.name not in _INTERNAL_COLUMNS]
_NAMES = [c.name for c in ROLLOUT_COLUMNS]
_INSERT = insert_sql(_t)
_GET = compile_sql(select(*ROLLOUT_COLUMNS).where(given(_t.c.rollout_id)))
_SEQ = compile_sql(select(_t.c.seq).where(given(_t.c.rollout_id)))
_MOVE = compile_sql(
    update(_t)
    .where(_t.c.rollout_id == bindparam("rollout"))
    .values(
        status=bindparam("to"),
        end_time=bindparam("at"),
        reason=func.coalesce(bindparam("why"), _t.c.reason),
    )
)
_CONFIGURE = compile_sql(
    update(_t).where(_t.c.rollout_id == bindparam("rollout")),
    *("config", "timeout_seconds", "unresponsive_seconds", "metadata"),
)


def rollout_from_row(row: Sequence[Any]) -> Rollout:
    """The rollout of a row of ``ROLLOUT_COLUMNS``."""
    found = dict(zip(_NAMES, row, strict=True))
    config, metadata = found["config"], found["metadata"]
    found["input"] = codec.unpack(found["input"])
    found["status"] = RolloutStatus(found["status"])
    found["config"] = RolloutConfig() if config is None else codec.unpack(config, RolloutConfig)
    found["metadata"] = {} if metadata is None else codec.unpack(metadata)
    return Rollout(**found)


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """The columns of a new rollout."""
    return {
        **{name: getattr(rollout, name) for name in _NAMES},
        "status": rollout.status.value,
        "attempts": 0,
        "end_time": None,
        "reason": None,
        "timeout_seconds": rollout.config.timeout_seconds,
        "unresponsive_seconds": rollout.config.unresponsive_seconds,
        "input": codec.pack_input(rollout),
        "config": codec.pack_config(rollout.config),
        "metadata": codec.pack_optional(rollout.metadata),
        "forgiven": 0,
    }


RESERVED_IDS = (".", "..", "null")
"""Ids that have another meaning in a URL or a query."""


def check_rollout(rollout: Rollout) -> None:
    """``ValueError`` names a bad value before a worker meets it."""
    for name in ("rollout_id", "run_id", "group_id"):
        if getattr(rollout, name) in RESERVED_IDS:
            raise ValueError(
                f"{name} {getattr(rollout, name)!r} means something else in a URL: choose another"
            )
    if rollout.mode not in ("train", "val", "test"):
        raise ValueError(f"mode must be train, val or test, not {rollout.mode!r}")
    check_config(rollout.config)
    check_count("sample", rollout.sample)
    check_count("resources_version", rollout.resources_version, 1)
    if rollout.seed is not None and not -(1 << 63) <= rollout.seed < 1 << 63:
        raise ValueError(f"seed must fit 64 bits, not {rollout.seed}")


class RolloutStore(RolloutDefaults):
    """Units of work."""

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Mode = "train",
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        rollout_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        group_id: str | None = None,
        sample: int = 0,
        seed: int | None = None,
        request_id: str | None = None,
    ) -> Rollout:
        """Put one task into the queue. The same ``rollout_id`` with the same content is done once.

        Default of ``resources_id``: the latest resources. Default of ``config``: that of its run
        (:meth:`agentlightning.store.sqlite.run_data.runs.RunStore.add_run`), else ``RolloutConfig()``.
        """
        rollout = Rollout(
            rollout_id=rollout_id or "",
            input=input,
            mode=mode,
            run_id=run_id,
            task_id=task_id,
            group_id=group_id,
            sample=sample,
            seed=seed,
            resources_id=resources_id,
            config=config or RolloutConfig(),
            metadata=metadata or {},
        )
        check_rollout(rollout)
        return await self._write("enqueue_rollout", lambda: self._enqueue([rollout])[0], request_id, Rollout)

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[Rollout], *, request_id: str | None = None
    ) -> list[Rollout]:
        """Put many into the queue in one transaction; an empty ``rollout_id`` becomes a fresh one.

        A ``config`` equal to ``RolloutConfig()`` means that of the run.
        """
        for rollout in rollouts:
            check_rollout(rollout)
        return await self._write(
            "enqueue_many_rollouts", lambda: self._enqueue(rollouts), request_id, list[Rollout]
        )

    def _enqueue(self, given: Sequence[Rollout]) -> list[Rollout]:
        now = self.clock()
        pin, config = cache(self._pin), cache(self._run_config)
        out: list[Rollout] = []
        for rollout in given:
            named = pin(rollout.resources_id, rollout.resources_version)
            known = self.db.one(_GET, rollout_id=rollout.rollout_id) if rollout.rollout_id else None
            if known:
                out.append(_require_same(rollout, rollout_from_row(known)))
            else:
                silent = rollout.run_id is not None and rollout.config == RolloutConfig()
                tried = config(rollout.run_id) if silent else rollout.config
                out.append(self._insert(rollout, now, named, tried))
        return out

    def _insert(
        self,
        given: Rollout,
        now: float,
        pin: Pin,
        config: RolloutConfig,
        status: RolloutStatus = RolloutStatus.QUEUING,
    ) -> Rollout:
        rollout = Rollout(
            rollout_id=given.rollout_id or time_ordered_id("ro"),
            input=given.input,
            status=status,
            mode=given.mode,
            run_id=given.run_id,
            task_id=given.task_id,
            group_id=given.group_id,
            sample=given.sample,
            seed=given.seed,
            resources_id=pin[0],
            resources_version=pin[1],
            config=config,
            metadata=given.metadata,
            start_time=now,
        )
        self.db.execute(_INSERT, **rollout_row(rollout))
        if status is RolloutStatus.QUEUING:
            self.waiters.notify_queued(rollout.run_id)
        return rollout

    def _rollout(self, rollout_id: str) -> Rollout:
        row = self.db.one(_GET, rollout_id=rollout_id)
        if row is None:
            raise NotFound(f"no rollout {rollout_id}")
        return rollout_from_row(row)

    def _set_rollout_status(
        self,
        rollout_id: str,
        run_id: str | None,
        status: RolloutStatus,
        now: float,
        reason: str | None = None,
    ) -> None:
        """Set an allowed status, and signal it. Without a reason the old one stays."""
        self.db.execute(
            _MOVE, rollout=rollout_id, to=status.value, at=now if status.final else None, why=reason
        )
        if status.final:
            self.waiters.notify_ended(rollout_id)
        elif status in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING):
            self.waiters.notify_queued(run_id)

    def _configure(
        self, rollout: Rollout, config: RolloutConfig | None, metadata: dict[str, Any] | None
    ) -> None:
        if config is not None:
            rollout.config = config
            check_rollout(rollout)
            self.cache.next_due = None
        rollout.metadata = {**rollout.metadata, **(metadata or {})}
        self.db.execute(
            _CONFIGURE,
            rollout=rollout.rollout_id,
            config=codec.pack_config(rollout.config),
            timeout_seconds=rollout.config.timeout_seconds,
            unresponsive_seconds=rollout.config.unresponsive_seconds,
            metadata=codec.pack_optional(rollout.metadata),
        )

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout:
        """The rollout, or :class:`NotFound`."""
        return await self.writer.read(lambda: self._rollout(rollout_id))

    async def query_rollouts(
        self,
        *,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        run_id: str | None = None,
        group_id: str | None = None,
        mode: Mode | None = None,
        task_id: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = 1000,
        after: str | None = None,
    ) -> list[Rollout]:
        """Rollouts in order of arrival (``desc``: latest first), filtered; ``after`` is the last id of the
        page before.
        """
        check_limit(limit)
        check_order(sort_order)
        back = sort_order == "desc"
        query = select(*ROLLOUT_COLUMNS).order_by(_t.c.seq.desc() if back else _t.c.seq).limit(limit)
        for name, value in (("run_id", run_id), ("group_id", group_id), ("mode", mode), ("task_id", task_id)):
            if value is not None:
                query = query.where(_t.c[name] == value)
        if status is not None:
            query = query.where(_t.c.status.in_([RolloutStatus(s).value for s in status]))
        if rollout_ids is not None:
            query = query.where(InJson(_t.c.rollout_id, rollout_ids))

        def work() -> list[Rollout]:
            found = query
            if after is not None:
                place = self._seq_of(after)
                found = query.where(_t.c.seq < place if back else _t.c.seq > place)
            return [rollout_from_row(row) for row in self.db.all(compile_sql(found))]

        return await self.writer.read(work)

    def _seq_of(self, rollout_id: str) -> int:
        row = self.db.one(_SEQ, rollout_id=rollout_id)
        if row is None:
            raise NotFound(f"after: no rollout {rollout_id}")
        return cast(int, row[0])


def _require_same(given: Rollout, known: Rollout) -> Rollout:
    for name in (
        "mode",
        "run_id",
        "task_id",
        "group_id",
        "sample",
        "seed",
    ):  # fields that never change
        if getattr(given, name) != getattr(known, name):
            raise Conflict(f"rollout {given.rollout_id} exists with another {name}")
    pinned = {"resources_id": known.resources_id, "resources_version": known.resources_version}
    for name, value in pinned.items():
        if getattr(given, name) not in (None, value):
            raise Conflict(f"rollout {given.rollout_id} exists with another {name}")
    if codec.pack(given.input) != codec.pack(known.input):
        raise Conflict(f"rollout {given.rollout_id} exists with another input")
    return known
