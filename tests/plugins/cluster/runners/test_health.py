"""The probes of a runner: alive while its loop turns, ready while the store answers."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, StoreError
from agentlightning.types import UsageError
from agl_cluster.runners.health import serving_health


class Silent(SQLiteStore):
    """A store that does not answer heartbeats while ``away`` is set."""

    away = False

    async def heartbeat(self, *args: Any, **given: Any) -> list[str]:
        if self.away:
            raise StoreError("nobody answers")
        return await super().heartbeat(*args, **given)


async def test_it_is_ready_while_the_store_answers() -> None:
    store = Silent(":memory:")
    runner, stop = Runner(lambda task: 1.0, store, RunnerSection(), heartbeat=0.02), asyncio.Event()
    serving = asyncio.create_task(runner.serve(stop))
    async with serving_health(runner, "127.0.0.1:0") as url, aiohttp.ClientSession() as session:

        async def status(path: str, wanted: int) -> None:
            async with asyncio.timeout(300):
                while (await session.get(f"{url}{path}")).status != wanted:
                    await asyncio.sleep(0.01)

        await status("/readyz", 200)
        store.away = True
        await status("/readyz", 503)
        await status("/healthz", 200)
        store.away = False
        await status("/readyz", 200)
    stop.set()
    await asyncio.wait_for(serving, 300)
    await store.close()


@pytest.mark.parametrize("place", ["8081", ":8081", "host:", "host:99999"])
async def test_what_is_no_address_is_refused(place: str) -> None:
    store = SQLiteStore(":memory:")
    with pytest.raises(UsageError, match="give host:port"):
        async with serving_health(Runner(lambda task: 1.0, store, RunnerSection()), place):
            pass
    await store.close()
