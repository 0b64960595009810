"""Find the rollout, attempt, call or token that a user names, in the store that holds it.

``ro-…`` is a rollout, ``at-…`` an attempt, ``at-…-3.0`` a call (request 3, choice 0; ``at-…-supplied.1``:
handed in by its agent) and ``at-…-3.0:7`` the eighth token of its response.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from agentlightning.plugins.manager import Plugins, load
from agentlightning.plugins.stores import open_store
from agentlightning.redaction import redacted
from agentlightning.store import Store, StoreError
from agentlightning.store.pages import pages
from agentlightning.types import Rollout
from agl_audit.locations import ALL, NoSuchRun, RunLocation, find_run, stores
from agl_audit.run import OpenRun, open_run, run_in
from agl_audit.store.fingerprints import query_fingerprints

_TOKEN = re.compile(r"(.+):(\d+)")
_CALL = re.compile(r"(.+)-(?:\d+|supplied)\.\d+")


class Target(NamedTuple):
    """A rollout, attempt, call or token: the narrowest field that is set names it."""

    rollout: Rollout
    attempt: str | None = None
    """``None``: the latest attempt."""
    call: str | None = None
    token: int | None = None
    """Position in the call's response."""


@asynccontextmanager
async def open_target(
    what: str, run: str | None = None, store: str | None = None, plugins: Plugins | None = None
) -> AsyncIterator[tuple[OpenRun, Target]]:
    """Open the run that holds ``what``, and yield both run and target.

    Search in ``run``, in ``store``, or else in all runs of ``runs/`` and ``AGL_STORAGE``, newest first. Raise
    :class:`NoSuchRun`, which says which stores were searched.
    """
    plugins = plugins or load()
    unread: list[str] = []
    if store is not None:
        places = [find_run(run or "", store)._replace(run=run)]
    else:
        places = [find_run(run)] if run is not None else stores()
    for place in places:
        try:
            one = open_store(place.store, read_only=True, plugins=plugins)
        except StoreError as error:
            unread.append(str(error))
            continue
        try:
            target = await find_target(one, what)
            if target is not None:
                yield await _run_of(one, place, target, plugins), target
                return
        finally:
            await one.close()
    raise NoSuchRun(_nowhere(what, places, unread))


def is_run(what: str) -> bool:
    """Whether ``what`` is a run, and no rollout, attempt or call of one."""
    try:
        return not what.startswith(("ro-", "at-")) and find_run(what).folder is not None
    except NoSuchRun:
        return False


async def last_trained(run: str) -> str:
    """Return the id of the last rollout that the run trained. Raise :class:`NoSuchRun` if it trained none."""
    async with open_run(run) as opened:
        logged = await query_fingerprints(opened.store, opened.run_id)
        trained = [one for one in logged if one.rows]
        if not trained:
            raise NoSuchRun(
                f"run {opened.run_id} has trained no rollout yet; `agl rollouts` lists those it has"
            )
        return max(trained, key=lambda one: (one.step, one.rollout_id)).rollout_id


async def find_target(store: Store, what: str) -> Target | None:
    """Return the target ``what`` of this store, or ``None``."""
    if rollout := await _rollout(store, what):
        return Target(rollout)
    index: int | None = None
    call = what
    if token := _TOKEN.fullmatch(what):
        call, index = token[1], int(token[2])
    made = _CALL.fullmatch(call)
    attempt = made[1] if made else call
    rollout = await _of_attempt(store, attempt)
    if rollout is None or (index is not None and made is None):
        return None
    if made is None:
        return Target(rollout, attempt)
    known = [c.call_id for c in await store.query_calls(rollout.rollout_id, attempt)]
    if call not in known:
        listed = ", ".join(known[:8]) or "none"
        raise NoSuchRun(
            f"attempt {attempt} of rollout {rollout.rollout_id} has no call {call}; it has {listed}"
        )
    return Target(rollout, attempt, call, index)


async def _run_of(store: Store, place: RunLocation, target: Target, plugins: Plugins) -> OpenRun:
    """Return the run of a rollout; without a record if the rollout belongs to no run."""
    run_id = target.rollout.run_id
    if run_id is not None:
        try:
            return await run_in(store, place._replace(run=run_id), plugins)
        except NoSuchRun:  # rollouts may bear the name of a run that nobody registered
            pass
    return OpenRun(run_id or "", {}, store, plugins)


async def _rollout(store: Store, rollout_id: str) -> Rollout | None:
    found = await store.query_rollouts(rollout_ids=[rollout_id], limit=1)
    return found[0] if found else None


async def _of_attempt(store: Store, attempt_id: str) -> Rollout | None:
    """Find the rollout of an attempt: by the fingerprints of the runs, else attempt by attempt."""
    if not attempt_id.startswith("at-"):  # as the store names them
        return None
    for info in await store.query_runs(limit=ALL):
        for fingerprint in await query_fingerprints(store, info["run_id"]):
            if fingerprint.attempt_id == attempt_id:
                return await _rollout(store, fingerprint.rollout_id)
    async for page in pages(store.query_rollouts):
        for rollout in page:
            attempts = await store.query_attempts(rollout.rollout_id)
            if any(attempt.attempt_id == attempt_id for attempt in attempts):
                return rollout
    return None


def _nowhere(what: str, places: list[RunLocation], unread: list[str]) -> str:
    if not places:
        return f"{what}: there is no run in runs/ to look in; give --run or --store"
    first = redacted(places[0].store)
    where = first if len(places) == 1 else f"{len(places)} stores ({first}, …)"
    text = f"{what}: no such rollout, attempt, call or token in {where}"
    return text + (f"; could not be read: {'; '.join(unread)}" if unread else "")
