"""Find the rollout, attempt, call or token that a user names, in the store that holds it.

``ro-…`` is a rollout, ``at-…`` an attempt, ``at-…-3.0`` a call (request 3, choice 0; ``at-…-supplied.1``:
handed in by its agent) and ``at-…-3.0:7`` the eighth token of its response.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from agentlightning.audit.locations import NoSuchRun, RunLocation, find_run, stores
from agentlightning.audit.run import ALL, OpenRun, run_in
from agentlightning.plugins.manager import Plugins, load
from agentlightning.plugins.stores import open_store
from agentlightning.store import NotFound, Store, StoreError
from agentlightning.types import Rollout

_TOKEN = re.compile(r"(.+):(\d+)")
_CALL = re.compile(r"(.+)-(?:\d+|supplied)\.\d+")


class Target(NamedTuple):
    """The target; the narrowest field that is set counts."""

    rollout: Rollout
    attempt: str | None = None
    """``None``: the latest."""
    call: str | None = None
    token: int | None = None
    """Position in the call's response."""


@asynccontextmanager
async def open_target(
    what: str, run: str | None = None, store: str | None = None, plugins: Plugins | None = None
) -> AsyncIterator[tuple[OpenRun, Target]]:
    """The open run that holds ``what``, and its target.

    Looked for in ``run``, in ``store``, or else in all runs of ``runs/`` and ``AGL_STORAGE``, newest first.
    Raises :class:`NoSuchRun`, which says where it was looked for.
    """
    plugins = plugins or load()
    unread: list[str] = []
    places = _places(run, store)
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


async def find_target(store: Store, what: str) -> Target | None:
    """The target ``what`` in this store, or ``None``."""
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
    calls = await store.query_calls(rollout.rollout_id, attempt)
    if all(c.call_id != call for c in calls):
        listed = ", ".join(c.call_id for c in calls[:8]) or "none"
        raise NoSuchRun(
            f"attempt {attempt} of rollout {rollout.rollout_id} has no call {call}; it has {listed}"
        )
    return Target(rollout, attempt, call, index)


def _places(run: str | None, store: str | None) -> list[RunLocation]:
    if store is not None:
        return [find_run(run or "", store)._replace(run=run)]
    return [find_run(run)] if run is not None else stores()


async def _run_of(store: Store, place: RunLocation, target: Target, plugins: Plugins) -> OpenRun:
    """The run of a rollout; without a record if the rollout belongs to none."""
    run_id = target.rollout.run_id
    if run_id is not None:
        try:
            return await run_in(store, place._replace(run=run_id), plugins)
        except NoSuchRun:  # rollouts may bear the name of a run that nobody registered
            pass
    return OpenRun(run_id or "", {}, store, plugins)


async def _rollout(store: Store, rollout_id: str) -> Rollout | None:
    try:
        return await store.get_rollout_by_id(rollout_id)
    except NotFound:
        return None


async def _of_attempt(store: Store, attempt_id: str) -> Rollout | None:
    """The rollout of an attempt: by the fingerprints of the runs, else attempt by attempt."""
    if not attempt_id.startswith("at-"):  # as the store names them
        return None
    for info in await store.query_runs(limit=ALL):
        for seal in await store.query_seals(info["run_id"]):
            if seal.attempt_id == attempt_id:
                return await _rollout(store, seal.rollout_id)
    after: str | None = None
    while page := await store.query_rollouts(limit=1000, after=after):
        for rollout in page:
            attempts = await store.query_attempts(rollout.rollout_id)
            if any(attempt.attempt_id == attempt_id for attempt in attempts):
                return rollout
        after = page[-1].rollout_id
    return None


def _nowhere(what: str, places: list[RunLocation], unread: list[str]) -> str:
    if not places:
        return f"{what}: there is no run in runs/ to look in; give --run or --store"
    where = places[0].store if len(places) == 1 else f"{len(places)} stores ({places[0].store}, …)"
    text = f"{what}: no such rollout, attempt, call or token in {where}"
    return text + (f"; could not be read: {'; '.join(unread)}" if unread else "")
