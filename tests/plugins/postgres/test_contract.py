"""The contract of a store, for PostgreSQL, asked directly and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.added import AddedOperationsContract
from contract.store import StoreContract

from agentlightning.store.base import Store
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start


class TestPostgres(StoreContract, AddedOperationsContract):
    @pytest.fixture
    async def store(self, postgres: Store) -> Store:
        return postgres


@pytest.mark.slow
class TestClientOfPostgres(StoreContract, AddedOperationsContract):
    @pytest.fixture
    async def store(self, postgres: Any) -> AsyncIterator[Store]:
        served = await start(postgres, port=0)
        client = StoreClient(served.url)
        yield client
        await client.close()
        await served.close()
