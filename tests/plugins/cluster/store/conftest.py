"""Stores for tests: in a file of their own, under a clock that moves when told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.store import Clock

from agentlightning.store.sqlite.store import SQLiteStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def sqlite(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "store.sqlite", clock=clock)
    yield store
    await store.close()
