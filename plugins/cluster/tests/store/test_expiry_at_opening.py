"""Attempts that ended while nobody served are ended at the start of a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from agl_cluster.store.server import start


async def test_a_server_ends_them_before_anybody_asks(left_behind: Path) -> None:
    served = await start(left_behind, port=0)
    async with aiohttp.ClientSession(served.url) as http:
        while True:
            async with http.get("/v1/agl/rollouts/ro-1") as response:
                if (await response.json())["status"] == "failed":
                    break
            await asyncio.sleep(0.05)
    await served.close()
