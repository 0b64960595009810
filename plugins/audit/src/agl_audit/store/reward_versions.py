"""Versions of a run's rewards: what functions gave its rollouts after they had ended, beside the rewards that
they ended with.

A version is what one function, with one content, gave. Another content is another version. Invariants:
nothing here changes a rollout, its attempts, calls, rewards or links. A rollout has at most one entry in a
version: a reward that is stored stays, and only an error is replaced, by a later try. A rollout that a
version has nothing for, or only an error, has no reward in it: it never falls back on the original one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import select

from agentlightning import semconv
from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound, Store
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, everywhere, read, write
from agentlightning.store.sql.database import InJson, given
from agentlightning.types import Model, Record, Reward, RolloutStatus, Span
from agentlightning.types.failure import failure_kind_of_end
from agl_audit.locations import NoSuchRun

_VERSION = "reward version"
"""Kind of the notes that hold versions, by name."""
_ENTRY = "rescored "
"""How the kind of a version's entries begins; its name follows. The entries are named by their rollouts."""
_n, _r = schema.notes.c, schema.rollouts.c
_OF_KIND = select(_n.data).where(given(_n.run_id, _n.kind)).order_by(_n.seq)
_NOTE = select(_n.data).where(given(_n.run_id, _n.kind, _n.name))
_PLACE = select(_n.seq).where(given(_n.run_id, _n.kind, _n.name))
_RUNS = select(_r.rollout_id, _r.run_id).where(InJson(_r.rollout_id))
_ENTRIES = (
    select(_n.data)
    .join(schema.rollouts, _r.rollout_id == _n.name)
    .where(InJson(_r.rollout_id), _n.run_id == _r.run_id, given(_n.kind))
)
_IDENTITY = ("function", "digest", "per", "agent")
"""What two versions of one name must have in common to be the same."""
ORIGINAL = "original"
"""The name by which commands choose the rewards that the rollouts ended with."""
NOT_RESCORED = "not-rescored"
RESCORE_ERROR = "rescore-error"
REWARD_FAILURES = frozenset({"no-reward", "bad-reward"})
"""Failures that are about the reward alone: a version that has one makes them good."""


class RewardVersion(Model):
    """A version of a run's rewards: the function that gave them, and the code that it was part of."""

    run_id: str
    name: str
    """By which commands choose it."""
    function: str
    """``module:function``."""
    digest: str
    """sha256 of the source of the function and of the file that holds it."""
    per: Literal["rollout", "call"] = "rollout"
    """What one call of the function gives a reward to."""
    agent: str | None = None
    """With ``per: call``: only the calls of this agent; else all."""
    code: dict[str, Any] = {}
    """``source`` (sha256 of the function's text), ``commit`` and ``dirty`` of its git repository, where it is
    in one, and ``versions`` of our packages."""
    create_time: float = 0.0


class Rescored(Model):
    """What a version has for one rollout: rewards, or the error of the function."""

    rollout_id: str
    version: str
    """Name of the version."""
    rewards: list[Reward] = []
    """In place of all rewards that the rollout ended with. Empty: the function said that it has none."""
    error: str | None = None
    """The function raised or returned no number: the rollout has no reward in this version."""
    traceback: str | None = None
    """Of what the function raised; ``None`` if it returned what is no reward."""


# -------------------------------------------------------------------------------------- operations of a store
@everywhere
@write
def add_reward_version(store: Tables, version: RewardVersion) -> RewardVersion:
    """Register a version; return it as it is stored. One that is there already stays as it was; raise
    ``Conflict`` if that is of another function, content, or kind.
    """
    if not version.name or not version.run_id:
        raise ValueError("a version of rewards needs a name and a run")
    key = {"run_id": version.run_id, "kind": _VERSION, "name": version.name}
    known = store.db.value(_NOTE, **key)
    if known is None:
        made = msgspec.structs.replace(version, create_time=store.clock())
        store.db.insert(schema.notes, {**key, "data": codec.pack(made)})
        return made
    there: RewardVersion = codec.unpack(known, RewardVersion)
    for name in _IDENTITY:
        was, now = getattr(there, name), getattr(version, name)
        if was != now:
            raise Conflict(
                f"run {version.run_id} has rewards {version.name} already, whose {name} is {was!r} and not "
                f"{now!r}: give the new ones another name"
            )
    return there


@everywhere
@read
def query_reward_versions(
    store: Tables, run_id: str, *, limit: int | None = None, after: str | None = None
) -> list[RewardVersion]:
    """Return the versions of a run's rewards, oldest first. ``after``: the last name of the page before."""
    check_limit(limit)
    query = _OF_KIND.limit(limit)
    if after is not None:
        place = store.db.value(_PLACE, run_id=run_id, kind=_VERSION, name=after)
        if place is None:
            raise NotFound(f"after: run {run_id} has no rewards {after}")
        query = query.where(_n.seq > place)
    return [codec.unpack(row[0], RewardVersion) for row in store.db.all(query, run_id=run_id, kind=_VERSION)]


@everywhere
@write
def add_rescored(store: Tables, rescored: Sequence[Rescored]) -> int:
    """Store entries of versions; return how many are new or replace an error. An entry for a rollout that has
    rewards in that version already is not stored.
    """
    ids = [one.rollout_id for one in rescored]
    store.db.lock_rollouts(ids)
    runs = dict(store.db.all(_RUNS, ids=json.dumps(ids)))
    for one in rescored:
        _check(store, one, runs)
    stored = 0
    for one in rescored:
        key = {"run_id": runs[one.rollout_id], "kind": _ENTRY + one.version, "name": one.rollout_id}
        known = store.db.value(_NOTE, **key)
        if known is not None and codec.unpack(known, Rescored).error is None:
            continue
        store.db.delete(schema.notes, **key)
        store.db.insert(schema.notes, {**key, "data": codec.pack(one)})
        stored += 1
    return stored


def _check(store: Tables, one: Rescored, runs: dict[str, Any]) -> None:
    if one.rollout_id not in runs:
        raise NotFound(f"no rollout {one.rollout_id}")
    if one.error is not None and one.rewards:
        raise ValueError(f"{one.rollout_id}: an entry has rewards or an error, not both")
    run_id = runs[one.rollout_id]
    if run_id is None or store.db.value(_NOTE, run_id=run_id, kind=_VERSION, name=one.version) is None:
        raise NotFound(f"the run of {one.rollout_id} ({run_id}) has no rewards {one.version}")


@everywhere
@read
def rescored(store: Tables, rollout_ids: Sequence[str], version: str) -> list[Rescored]:
    """Return the entries of these rollouts in a version, in the order asked for; a rollout without one is
    absent.
    """
    rows = store.db.all(_ENTRIES, ids=json.dumps(list(rollout_ids)), kind=_ENTRY + version)
    entries = [codec.unpack(row[0], Rescored) for row in rows]
    found = {one.rollout_id: one for one in entries}
    return [found[one] for one in rollout_ids if one in found]


# ---------------------------------------------------------------------------------------- reading the rewards
async def find_version(store: Store, run_id: str, name: str | None) -> RewardVersion | None:
    """Return the version of a run's rewards that ``name`` (or its beginning) names; ``None`` for the
    original ones. Raise :class:`NoSuchRun`, which lists the versions.
    """
    if name is None or name == ORIGINAL:
        return None
    known = await query_reward_versions(store, run_id)
    found = [one for one in known if one.name == name] or [one for one in known if one.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(one.name for one in known) or "none beside the original ones; `agl rescore` makes one"
    what = "several rewards that begin with" if found else "no rewards"
    raise NoSuchRun(f"run {run_id} has {what} {name!r}; it has {listed}")


async def read_records(
    store: Store,
    rollout_ids: Sequence[str],
    version: RewardVersion | None,
    left_out: Counter[str] | None = None,
) -> list[Record]:
    """Return records with the rewards of ``version`` (``None``: as they are). With ``left_out``, rollouts of
    training that the version has no entry for, or an error, are counted there and not returned.
    """
    records = await store.records(rollout_ids)
    if version is None:
        return records
    entries = {one.rollout_id: one for one in await rescored(store, rollout_ids, version.name)}
    found = []
    for record in records:
        entry = entries.get(record.rollout.rollout_id)
        usable = entry is not None and entry.error is None
        if not usable and left_out is not None and record.rollout.mode == "train":
            left_out[NOT_RESCORED if entry is None else RESCORE_ERROR] += 1
            continue
        found.append(with_rewards(record, entry))
    return found


def with_rewards(record: Record, entry: Rescored | None) -> Record:
    """Return the record with the rewards of an entry. A rollout that failed for want of a reward, and has
    one here, counts as succeeded.
    """
    rewards = [] if entry is None else entry.rewards
    rollout = record.rollout
    if rewards and rollout.status == RolloutStatus.FAILED and failed_by_reward(record):
        rollout = msgspec.structs.replace(rollout, status=RolloutStatus.SUCCEEDED, reason=None)
    judged = [msgspec.structs.replace(reward, returned=True) for reward in rewards]  # no agent gave them
    return msgspec.structs.replace(record, rollout=rollout, rewards=judged)


def failed_by_reward(record: Record) -> bool:
    """Whether a failed rollout failed for want of a valid reward only."""
    status = record.rollout.status if record.attempt is None else record.attempt.status
    return failure_kind_of_end(status, record.rollout.reason) in REWARD_FAILURES


def as_span(rollout_id: str, attempt_id: str, reward: Reward) -> Span:
    """Return a version's reward as the span that would have carried it."""
    attributes = {
        semconv.REWARD_VALUE: reward.value,
        semconv.REWARD_NAME: reward.name,
        semconv.REWARD_FINAL: reward.final,
        semconv.REWARD_CALL: reward.call_id,
        semconv.REWARD_AGENT: reward.agent,
    }
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=semconv.REWARD_SPAN,
        attributes={name: value for name, value in attributes.items() if value is not None},
        start_time=reward.time,
        end_time=reward.time,
    )
