"""Defaults of a new rollout: the latest resources, and the configuration of its run.

Both are read in the transaction that makes the rollout, and recorded with it.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import bindparam, func, select

from agentlightning.store import codec
from agentlightning.store.base import NotFound
from agentlightning.store.bounds import check_count, check_seconds
from agentlightning.store.sqlite.core import StoreCore
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given
from agentlightning.types import RolloutConfig

_k = schema.resources.c
_LATEST = compile_sql(select(_k.resources_id, _k.version).order_by(_k.seq.desc()).limit(1))
_NAMED = compile_sql(
    select(_k.resources_id, _k.version)
    .where(
        given(_k.resources_id),
        _k.version == func.coalesce(bindparam("version"), _k.version),
    )
    .order_by(_k.version.desc())
    .limit(1)
)
_RUN_CONFIG = compile_sql(select(schema.runs.c.config).where(given(schema.runs.c.run_id)))
Pin = tuple[str | None, int | None]
"""Id and version of resources."""


def check_config(config: RolloutConfig | None) -> None:
    """``ValueError`` for limits that a timer cannot keep."""
    if config is None:
        return
    check_count("config.max_attempts", config.max_attempts, 1)
    for name in ("timeout_seconds", "unresponsive_seconds"):
        check_seconds(f"config.{name}", getattr(config, name), positive=True)


class RolloutDefaults(StoreCore):
    """Resources and configuration of new rollouts."""

    def _pin(self, resources_id: str | None, version: int | None = None) -> Pin:
        """The named resources in the named version, else the latest. ``NotFound``: there are none of that
        name.
        """
        if resources_id is None:
            latest = self.db.one(_LATEST)
            return (None, None) if latest is None else (latest[0], latest[1])
        named = self.db.one(_NAMED, resources_id=resources_id, version=version)
        if named is None:
            of = "" if version is None else f" in version {version}"
            raise NotFound(f"no resources {resources_id}{of}: add_resources first")
        return named[0], named[1]

    def _run_config(self, run_id: str) -> RolloutConfig:
        """The configuration of a run, for its rollouts that have none of their own."""
        row = self.db.one(_RUN_CONFIG, run_id=run_id)
        known = None if row is None else row[0]
        return RolloutConfig() if known is None else cast(RolloutConfig, codec.unpack(known, RolloutConfig))
