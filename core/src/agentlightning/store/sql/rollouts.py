"""Rollouts: queued, queried, configured. Leases are in :mod:`.leases`.

Invariants: a final status never changes, except by a requeue (:mod:`.attempts`); a rollout id stands for one
content. The transaction that makes a rollout also reads the version of its resources and its run's
configuration, and records both with it.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, cast

import msgspec
from sqlalchemy import select

from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.bounds import RESERVED_IDS, check_count, check_fields, check_seconds
from agentlightning.store.pages import SortOrder, check_limit, check_order
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, read, write
from agentlightning.store.sql.database import InJson, given
from agentlightning.store.sql.resources import require_resources, resources_row
from agentlightning.types import Rollout, RolloutConfig, RolloutStatus

_t, _run = schema.rollouts, schema.runs.c
_INTERNAL_COLUMNS = ("seq", "timeout_seconds", "unresponsive_seconds", "forgiven")
ROLLOUT_COLUMNS = [c for c in _t.c if c.name not in _INTERNAL_COLUMNS]
_NAMES = [c.name for c in ROLLOUT_COLUMNS]
GET_ROLLOUT = select(*ROLLOUT_COLUMNS).where(given(_t.c.rollout_id))
_SEQ = select(_t.c.seq).where(given(_t.c.rollout_id))
_RUN_CONFIG = select(_run.config).where(given(_run.run_id))
UNREADABLE = "agl.unreadable"
"""Key in place of metadata that cannot be read."""
_log = logging.getLogger(__name__)
Pin = dict[str, Any]
"""``resources_id`` and ``resources_version`` of a rollout."""


def time_ordered_id(prefix: str) -> str:
    """Return a fresh id, e.g. ``ro-019…``: 44 bits of milliseconds since the epoch, 48 random bits.

    Ids grow with time, so that their index grows at one end. Random ids make every new row touch another page
    of each index, and a commit writes whole pages.
    """
    return f"{prefix}-{time.time_ns() // 1_000_000:011x}{secrets.token_hex(6)}"


def unpack_config(blob: bytes | None) -> RolloutConfig:
    """Return the configuration of a blob; the usual one for ``None``, and for a blob that cannot be read."""
    try:
        return RolloutConfig() if blob is None else cast(RolloutConfig, codec.unpack(blob, RolloutConfig))
    except ValueError as error:
        _log.warning("the configuration of a rollout cannot be read, the usual one is taken: %s", error)
        return RolloutConfig()


def unpack_metadata(blob: bytes | None) -> dict[str, Any]:
    """Return the metadata of a blob; ``None`` stands for ``{}``. Of a blob that is no metadata (an earlier
    version took it), return what is wrong with it: one row must not stop the queue.
    """
    try:
        return {} if blob is None else cast("dict[str, Any]", codec.unpack(blob, dict[str, Any]))
    except ValueError as error:
        return {UNREADABLE: str(error)}


def rollout_from_row(row: Sequence[Any]) -> Rollout:
    """Return the rollout of a row of ``ROLLOUT_COLUMNS``."""
    found = dict(zip(_NAMES, row, strict=True))
    found["input"] = codec.unpack(found["input"])
    found["status"] = RolloutStatus(found["status"])
    found["config"] = unpack_config(found["config"])
    found["metadata"] = unpack_metadata(found["metadata"])
    return Rollout(**found)


def config_columns(config: RolloutConfig) -> dict[str, Any]:
    """Return the columns of a configuration: the blob, and the limits that :mod:`.expiry` compares."""
    limits = {name: getattr(config, name) for name in ("timeout_seconds", "unresponsive_seconds")}
    return {"config": codec.pack_config(config), **limits}


def check_config(config: RolloutConfig | None) -> None:
    """Raise ``ValueError`` for limits that a timer cannot keep."""
    if config is None:
        return
    check_count("config.max_attempts", config.max_attempts, 1)
    for name in ("timeout_seconds", "unresponsive_seconds"):
        check_seconds(f"config.{name}", getattr(config, name), positive=True)


def check_rollout(rollout: Rollout) -> None:
    """Raise ``ValueError`` for a bad value, before a worker gets it."""
    check_fields(rollout)
    for name in ("rollout_id", "run_id", "group_id"):
        value = getattr(rollout, name)
        if value in RESERVED_IDS:
            raise ValueError(f"{name} {value!r} means something else in a URL: choose another")
    if rollout.mode not in ("train", "val", "test"):
        raise ValueError(f"mode must be train, val or test, not {rollout.mode!r}")
    check_config(rollout.config)
    check_count("sample", rollout.sample)
    check_count("resources_version", rollout.resources_version, 1)
    if rollout.seed is not None and not -(1 << 63) <= rollout.seed < 1 << 63:
        raise ValueError(f"seed must fit 64 bits, not {rollout.seed}")


@write
def enqueue_many_rollouts(store: Tables, rollouts: Sequence[Rollout]) -> list[Rollout]:
    for rollout in rollouts:
        check_rollout(rollout)
    pinned, run_config = cache(partial(pin, store)), cache(partial(_run_config, store))
    out: list[Rollout] = []
    for rollout in rollouts:
        its_pin = pinned(rollout.resources_id, rollout.resources_version)
        known = store.db.one(GET_ROLLOUT, rollout_id=rollout.rollout_id) if rollout.rollout_id else None
        if known:
            out.append(_require_same(rollout, rollout_from_row(known)))
            continue
        of_run = rollout.run_id is not None and rollout.config == RolloutConfig()
        config = run_config(rollout.run_id) if of_run else rollout.config
        out.append(insert_rollout(store, rollout, its_pin, config))
        store.waiters.notify_queued(rollout.run_id)
    return out


def pin(store: Tables, resources_id: str | None, version: int | None = None) -> Pin:
    """Return the named resources in the named version, else the latest, else ``None`` and ``None``. Raise
    ``NotFound`` if there are none of that name.
    """
    named = None if resources_id is None else require_resources(store, resources_id, version)
    row = named or resources_row(store, None)
    known = (None, None) if row is None else row[:2]
    return dict(zip(("resources_id", "resources_version"), known, strict=True))


def _run_config(store: Tables, run_id: str | None) -> RolloutConfig:
    """Return the configuration of a run, for its rollouts that have none of their own."""
    return unpack_config(store.db.value(_RUN_CONFIG, run_id=run_id))


def insert_rollout(
    store: Tables,
    given: Rollout,
    pin: Pin,
    config: RolloutConfig,
    status: RolloutStatus = RolloutStatus.QUEUING,
) -> Rollout:
    """Make a rollout, with its pinned resources and its configuration."""
    rollout = msgspec.structs.replace(
        given,
        rollout_id=given.rollout_id or time_ordered_id("ro"),
        status=status,
        **pin,
        config=config,
        attempts=0,
        start_time=store.clock(),
        end_time=None,
        reason=None,
    )
    columns = {
        **msgspec.structs.asdict(rollout),
        **config_columns(config),
        "status": status.value,
        "input": codec.pack_input(rollout),
        "metadata": codec.pack_optional(rollout.metadata),
    }
    store.db.keep_order(_t)
    store.db.insert(_t, columns)
    return rollout


def find_rollout(store: Tables, rollout_id: str) -> Rollout:
    """Return the rollout, or raise :class:`NotFound`."""
    row = store.db.one(GET_ROLLOUT, rollout_id=rollout_id)
    if row is None:
        raise NotFound(f"no rollout {rollout_id}")
    return rollout_from_row(row)


def set_rollout_status(
    store: Tables,
    rollout_id: str,
    run_id: str | None,
    status: RolloutStatus,
    now: float,
    reason: str | None = None,
) -> None:
    """Set an allowed status, and signal it. Without a reason the old one stays."""
    changes = {} if reason is None else {"reason": reason}
    end_time = now if status.final else None
    store.db.update(_t, {"rollout_id": rollout_id}, status=status.value, end_time=end_time, **changes)
    if status.final:
        store.waiters.notify_ended(rollout_id)
    elif status in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING):
        store.waiters.notify_queued(run_id)


@read
def get_rollout_by_id(store: Tables, rollout_id: str) -> Rollout:
    return find_rollout(store, rollout_id)


@read
def query_rollouts(
    store: Tables,
    status: Sequence[RolloutStatus] | None,
    rollout_ids: Sequence[str] | None,
    sort_order: SortOrder,
    limit: int,
    after: str | None,
    **equal: str | None,
) -> list[Rollout]:
    check_limit(limit)
    check_order(sort_order)
    back = sort_order == "desc"
    query = select(*ROLLOUT_COLUMNS).order_by(_t.c.seq.desc() if back else _t.c.seq).limit(limit)
    for name, value in equal.items():
        if value is not None:
            query = query.where(_t.c[name] == value)
    if status is not None:
        query = query.where(InJson(_t.c.status, "statuses"))
    if rollout_ids is not None:
        query = query.where(InJson(_t.c.rollout_id))
    if after is not None:
        place = store.db.value(_SEQ, rollout_id=after)
        if place is None:
            raise NotFound(f"after: no rollout {after}")
        query = query.where(_t.c.seq < place if back else _t.c.seq > place)
    ids = json.dumps(list(rollout_ids or ()))
    statuses = json.dumps([RolloutStatus(s) for s in status or ()])
    rows = store.db.all(query, ids=ids, statuses=statuses)
    return [rollout_from_row(row) for row in rows]


def _require_same(given: Rollout, known: Rollout) -> Rollout:
    """Return ``known``; raise :class:`Conflict` if ``given`` has another content."""
    never_change = ("mode", "run_id", "task_id", "group_id", "sample", "seed")
    other = [name for name in never_change if getattr(given, name) != getattr(known, name)]
    for name in ("resources_id", "resources_version"):
        if getattr(given, name) not in (None, getattr(known, name)):
            other.append(name)
    if other or codec.pack(given.input) != codec.pack(known.input):
        raise Conflict(f"rollout {given.rollout_id} exists with another {[*other, 'input'][0]}")
    return known
