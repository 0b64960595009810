"""Attempts whose worker died with an earlier process of the store end by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus


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
