"""Fingerprints: hashes of what each step trained of each rollout."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, tuple_

from agentlightning.store import codec
from agentlightning.store.base import NotFound
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, everywhere, read
from agentlightning.store.sql.database import given
from agentlightning.store.sql.runs import no_place, parse_cursor
from agentlightning.types import RolloutFingerprint

_e = schema.fingerprints
_PLACE_OF = select(_e.c.seq).where(given(_e.c.run_id, _e.c.step, _e.c.policy, _e.c.rollout_id))


@everywhere
@read
def query_fingerprints(
    store: Tables,
    run_id: str,
    step: int | None = None,
    rollout_id: str | None = None,
    *,
    limit: int | None = None,
    after: str | None = None,
) -> list[RolloutFingerprint]:
    """Return the fingerprints of a run, by step, then in order of arrival. ``after``:
    ``<step>/<policy>/<rollout>`` of the page before.
    """
    check_limit(limit)
    query = select(_e.c.fingerprint).where(_e.c.run_id == run_id)
    query = query.order_by(_e.c.step, _e.c.seq).limit(limit)
    for name, value in (("step", step), ("rollout_id", rollout_id)):
        if value is not None:
            query = query.where(_e.c[name] == value)
    if after is not None:
        query = query.where(tuple_(_e.c.step, _e.c.seq) > tuple_(*_place(store, run_id, after)))
    return [codec.unpack(row[0], RolloutFingerprint) for row in store.db.all(query)]


def header(fingerprint: RolloutFingerprint) -> dict[str, Any]:
    """Return the arguments with which a fingerprint is made again."""
    return {name: getattr(fingerprint, name) for name in ("run_id", "step", "policy", "version")}


def _place(store: Tables, run_id: str, after: str) -> tuple[int, int]:
    """Return step and sequence number of the fingerprint of a cursor."""
    step, rest = parse_cursor(after)
    policy, slash, rollout_id = rest.rpartition("/")
    if not slash:
        raise no_place(after)
    place = store.db.value(_PLACE_OF, run_id=run_id, step=step, policy=policy, rollout_id=rollout_id)
    if place is None:
        raise NotFound(f"after: run {run_id} has no fingerprint {after}")
    return step, place
