"""The contract of stores, asked over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from contract.store import StoreContract

from agentlightning.store.sqlite.store import SQLiteStore
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start


class TestClient(StoreContract):
    @pytest.fixture
    async def store(self, sqlite: SQLiteStore) -> AsyncIterator[StoreClient]:
        served = await start(sqlite, port=0)
        client = StoreClient(served.url)
        yield client
        await client.close()
        await served.close()
