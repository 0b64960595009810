"""Stores for tests: in a file of their own, under a clock that moves when told; and one that is served."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from core.store.conftest import clock as clock, left_behind as left_behind, sqlite as sqlite

from agentlightning.store import SQLiteStore
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import ServedStore, start


@pytest.fixture
async def served(sqlite: SQLiteStore) -> AsyncIterator[ServedStore]:
    found = await start(sqlite, port=0)
    yield found
    await found.close()


@pytest.fixture
async def http(served: ServedStore) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(served.url) as session:
        yield session


@pytest.fixture
async def client(served: ServedStore) -> AsyncIterator[StoreClient]:
    found = StoreClient(served.url)
    yield found
    await found.close()
