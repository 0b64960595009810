"""The stores that the pages show, each under a short key that stands in addresses.

Invariant: stores are opened to read only; a key stands for one store as long as the server runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentlightning.plugins.manager import Plugins, load
from agentlightning.plugins.stores import open_store
from agentlightning.redaction import redacted
from agentlightning.store import Store
from agl_audit.locations import NoSuchRun, RunLocation, find_run, stores
from agl_audit.run import OpenRun, run_in

_OPEN = 16
"""Stores that stay open at a time."""


class NoSuchPlace(NoSuchRun):
    """No store has the key."""


class Places:
    """The stores of a runs folder, of one run, or of one file or URL. ``what``: as for ``agl runs``."""

    def __init__(self, what: str | None = None, plugins: Plugins | None = None) -> None:
        self.what = what
        self.plugins = plugins or load()
        self._keys: dict[str, str] = {}
        """Store → key."""
        self._open: OrderedDict[str, tuple[Store, object]] = OrderedDict()

    def require(self) -> None:
        """Raise :class:`NoSuchRun` if ``what`` names nothing. An empty runs folder is a place."""
        self.list()

    def list(self) -> list[tuple[str, RunLocation]]:
        """Return key and location of each store, newest first. New runs of a folder are found each time."""
        try:
            found = stores(self.what)
        except NoSuchRun as nowhere:
            try:
                found = [find_run(self.what or "")._replace(run=None)]
            except NoSuchRun as error:
                raise (error if "beginning of" in str(error) else nowhere) from None
        return [(self._key(place), place) for place in found]

    def _key(self, place: RunLocation) -> str:
        if place.store not in self._keys:
            name = place.folder.name if place.folder else _store_name(place.store)
            key = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "store"
            if key in self._keys.values():
                key = f"{key}-{hashlib.sha256(place.store.encode()).hexdigest()[:6]}"
            self._keys[place.store] = key
        return self._keys[place.store]

    def find(self, key: str) -> RunLocation:
        """Return the location of a store. Raise :class:`NoSuchPlace`."""
        for known, place in self.list():
            if known == key:
                return place
        raise NoSuchPlace(f"there is no store {key!r} here; the first page lists those there are")

    async def store(self, key: str) -> Store:
        """Return the open store of a key; the least recently used ones are closed."""
        place = self.find(key)
        file = _file_id(place.store)
        held = self._open.pop(key, None)
        if held is not None and held[1] != file:  # the file was replaced
            await held[0].close()
            held = None
        if held is None:
            held = (await asyncio.to_thread(self.open_again, key), file)
        self._open[key] = held
        while len(self._open) > _OPEN:
            _, (oldest, _) = self._open.popitem(last=False)
            await oldest.close()
        return held[0]

    def open_again(self, key: str) -> Store:
        """Open the store of a key once more, for another thread; the caller closes it."""
        opened: Store = open_store(self.find(key).store, read_only=True, plugins=self.plugins)
        return opened

    async def run(self, key: str, run_id: str) -> OpenRun:
        """Return a run in its open store."""
        return await self.run_of(await self.store(key), key, run_id)

    async def run_of(self, store: Store, key: str, run_id: str) -> OpenRun:
        """Return a run in ``store``, which is that of ``key``; without a record if nobody registered it."""
        place = self.find(key)
        try:
            return await run_in(store, place._replace(run=run_id), self.plugins)
        except NoSuchRun:  # rollouts may bear the name of a run that nobody registered
            return OpenRun(run_id, {}, store, self.plugins)

    @asynccontextmanager
    async def own_store(self, key: str) -> AsyncIterator[Store]:
        """Open a store for a piece of work in a thread of its own, and close it."""
        store = self.open_again(key)
        try:
            yield store
        finally:
            await store.close()

    async def close(self) -> None:
        """Close every store."""
        while self._open:
            _, (store, _) = self._open.popitem()
            await store.close()


def _store_name(store: str) -> str:
    """Return the name of a store that lies in no run's folder."""
    return Path(redacted(store).partition("?")[0].rpartition("/")[2] or "store").stem


def _file_id(store: str) -> object:
    try:
        found = None if "://" in store else os.stat(store)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)
