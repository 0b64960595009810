"""What the pages share: stores, indexes of rollouts, and threads for work that computes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from aiohttp import web

from agentlightning.store import Store
from agentlightning.types import Rollout
from agl_audit.run import OpenRun
from agl_dashboard.data.index import RolloutIndex
from agl_dashboard.data.lines import line_source
from agl_dashboard.data.places import NoSuchPlace, Places

_INDEXES = 4
"""Stores whose rollouts stay indexed at a time: 100,000 rollouts take some 100 MB."""
T = TypeVar("T")


class Context:
    """Of one server."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._indexes: OrderedDict[str, tuple[Store, RolloutIndex]] = OrderedDict()
        self._computing = asyncio.Semaphore(2)

    async def index(self, place: str) -> RolloutIndex:
        """Return the index of a store, up to date as :meth:`.RolloutIndex.refresh` says."""
        store = await self.places.store(place)
        held = self._indexes.pop(place, None)
        if held is not None and held[0] is not store:
            await held[1].close()
            held = None
        if held is None:
            held = (store, RolloutIndex(line_source(store)))
        self._indexes[place] = held
        while len(self._indexes) > _INDEXES:
            _, (_, oldest) = self._indexes.popitem(last=False)
            await oldest.close()
        await held[1].refresh()
        return held[1]

    async def rollout(self, place: str, rollout_id: str) -> tuple[OpenRun, Rollout]:
        """Return a rollout and its run."""
        store = await self.places.store(place)
        rollout = await find_rollout(store, rollout_id)
        return await self.places.run_of(store, place, rollout.run_id or ""), rollout

    async def compute(self, place: str, run_id: str, work: Callable[[OpenRun], Awaitable[T]]) -> T:
        """Do work that computes for long (credit, a forward pass) in a thread, with a store of its own."""

        async def open_and_work() -> T:
            async with self.places.own_store(place) as store:
                return await work(await self.places.run_of(store, place, run_id))

        def in_loop() -> T:
            return asyncio.run(open_and_work())

        async with self._computing:
            return await asyncio.to_thread(in_loop)

    async def close(self) -> None:
        """Close indexes and stores."""
        while self._indexes:
            _, (_, index) = self._indexes.popitem()
            await index.close()
        await self.places.close()


CONTEXT: Final[web.AppKey[Context]] = web.AppKey("context", Context)


async def find_rollout(store: Store, rollout_id: str) -> Rollout:
    """Return a rollout. Raise :class:`.NoSuchPlace`."""
    found = await store.query_rollouts(rollout_ids=[rollout_id], limit=1)
    if not found:
        raise NoSuchPlace(f"the store has no rollout {rollout_id!r}")
    return found[0]


def context_of(request: web.Request) -> Context:
    """Return the context of a request's server."""
    return request.app[CONTEXT]


def crumbs(place: str, run: str = "", *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the trail above a page: names and addresses, from the list of runs down."""
    from agl_dashboard.server.render import path

    trail: list[tuple[str, str]] = [("Runs", "/")]
    if run:
        trail.append((run, path("s", place, "runs", run)))
    return [*trail, *more]
