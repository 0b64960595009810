"""Attempts that ended while nobody served are ended at the start of a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from agentlightning.store import SQLiteStore
from agentlightning.types import RolloutConfig
from agl_cluster.store.server import start


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


async def test_a_server_ends_them_before_anybody_asks(left_behind: Path) -> None:
    served = await start(left_behind, port=0)
    assert served.store.timer.armed
    async with aiohttp.ClientSession(served.url) as http:
        while True:
            async with http.get("/v1/agl/rollouts/ro-1") as response:
                if (await response.json())["status"] == "failed":
                    break
            await asyncio.sleep(0.05)
    await served.close()
