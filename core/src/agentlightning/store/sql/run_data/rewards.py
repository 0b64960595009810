"""Versions of a run's rewards: what functions gave its rollouts after they had ended.

Invariants: nothing here changes a rollout, its attempts, calls, rewards or links. A rollout has at most one
entry in a version: a reward that is stored stays, and only an error is replaced, by a later try.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import select

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, read, write
from agentlightning.store.sql.database import InJson, given
from agentlightning.types import Rescored, RewardVersion

_v, _s, _r = schema.reward_versions, schema.rescored, schema.rollouts
_VERSION = select(_v.c.version).where(given(_v.c.run_id, _v.c.name))
_VERSIONS = select(_v.c.version).order_by(_v.c.seq)
_PLACE = select(_v.c.seq).where(given(_v.c.run_id, _v.c.name))
_RUNS = select(_r.c.rollout_id, _r.c.run_id).where(InJson(_r.c.rollout_id))
_ENTRIES = select(_s.c.rollout_id, _s.c.failed, _s.c.data).where(InJson(_s.c.rollout_id), given(_s.c.version))
_IDENTITY = ("function", "digest", "per", "agent")
"""What two versions of one name must have in common to be the same."""


@write
def add_reward_version(store: Tables, version: RewardVersion) -> RewardVersion:
    if not version.name or not version.run_id:
        raise ValueError("a version of rewards needs a name and a run")
    key = {"run_id": version.run_id, "name": version.name}
    known = store.db.value(_VERSION, **key)
    if known is None:
        made = msgspec.structs.replace(version, create_time=store.clock())
        store.db.insert(_v, {**key, "version": codec.pack(made)})
        return made
    there: RewardVersion = codec.unpack(known, RewardVersion)
    for name in _IDENTITY:
        was, now = getattr(there, name), getattr(version, name)
        if was != now:
            raise Conflict(
                f"run {version.run_id} has rewards {version.name} already, whose {name} is {was!r} and "
                f"not {now!r}: give the new ones another name"
            )
    return there


@read
def query_reward_versions(
    store: Tables, run_id: str, limit: int | None, after: str | None
) -> list[RewardVersion]:
    check_limit(limit)
    query = _VERSIONS.where(_v.c.run_id == run_id).limit(limit)
    if after is not None:
        place = store.db.value(_PLACE, run_id=run_id, name=after)
        if place is None:
            raise NotFound(f"after: run {run_id} has no rewards {after}")
        query = query.where(_v.c.seq > place)
    return [codec.unpack(row[0], RewardVersion) for row in store.db.all(query)]


@write
def add_rescored(store: Tables, rescored: Sequence[Rescored]) -> int:
    ids = json.dumps([one.rollout_id for one in rescored])
    runs = dict(store.db.all(_RUNS, ids=ids))
    for one in rescored:
        _check(store, one, runs)
    stored = 0
    for one in rescored:
        key = {"rollout_id": one.rollout_id, "version": one.version}
        known = store.db.all(_ENTRIES, ids=json.dumps([one.rollout_id]), version=one.version)
        if known and not known[0][1]:
            continue
        store.db.delete(_s, **key)
        failed = int(one.error is not None)
        store.db.insert(_s, {**key, "failed": failed, "data": codec.pack(one)})
        stored += 1
    return stored


def _check(store: Tables, one: Rescored, runs: dict[str, Any]) -> None:
    if one.rollout_id not in runs:
        raise NotFound(f"no rollout {one.rollout_id}")
    if one.error is not None and one.rewards:
        raise ValueError(f"{one.rollout_id}: an entry has rewards or an error, not both")
    run_id = runs[one.rollout_id]
    if run_id is None or store.db.value(_VERSION, run_id=run_id, name=one.version) is None:
        raise NotFound(f"the run of {one.rollout_id} ({run_id}) has no rewards {one.version}")


@read
def rescored(store: Tables, rollout_ids: Sequence[str], version: str) -> list[Rescored]:
    rows = store.db.all(_ENTRIES, ids=json.dumps(list(rollout_ids)), version=version)
    found = {row[0]: codec.unpack(row[2], Rescored) for row in rows}
    return [found[one] for one in rollout_ids if one in found]
