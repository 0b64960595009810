"""The contract of a store, for the SQLite file and for the client over HTTP."""

from __future__ import annotations

import pytest
from contract.store import StoreContract

from agentlightning.store.sqlite.store import SQLiteStore


class TestSQLite(StoreContract):
    @pytest.fixture
    async def store(self, sqlite: SQLiteStore) -> SQLiteStore:
        return sqlite
