"""Stores for tests: in a file of their own, under a clock that moves when told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.store import Clock

from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import RolloutConfig


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def sqlite(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "store.sqlite", clock=clock)
    yield store
    await store.close()


@pytest.fixture
async def left_behind(tmp_path: Path) -> Path:
    """A store whose process ended while an attempt ran."""
    file = tmp_path / "store.sqlite"
    store = SQLiteStore(file)
    await store.start_rollout(
        1, config=RolloutConfig(unresponsive_seconds=0.3, max_attempts=1), rollout_id="ro-1"
    )
    await store.close()
    return file
