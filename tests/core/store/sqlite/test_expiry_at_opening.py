"""Attempts whose worker died with an earlier process of the store end by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, RolloutConfig


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


async def test_a_client_that_only_polls_sees_the_end(left_behind: Path) -> None:
    store = SQLiteStore(left_behind)
    while not (found := await store.get_rollout_by_id("ro-1")).status.final:
        await asyncio.sleep(0.05)
    (attempt,) = await store.query_attempts("ro-1")
    assert (found.status, attempt.status) == ("failed", AttemptStatus.UNRESPONSIVE)
    await store.close()


async def test_a_reader_of_the_file_ends_nothing(left_behind: Path) -> None:
    reader = SQLiteStore(left_behind, read_only=True)
    assert (await reader.get_rollout_by_id("ro-1")).status == "preparing"
    await asyncio.sleep(0)
    assert not reader.timer.armed
    await reader.close()
