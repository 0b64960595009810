"""The contract of stores, asked over HTTP."""

from __future__ import annotations

import pytest
from contract.store import StoreContract

from agl_cluster.store.client import StoreClient


class TestClient(StoreContract):
    @pytest.fixture
    async def store(self, client: StoreClient) -> StoreClient:
        return client
