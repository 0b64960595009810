"""A server on a full disk says so."""

from __future__ import annotations

import aiohttp
from core.store.test_full_disk import limit

from agentlightning.store.sqlite.store import SQLiteStore
from agl_cluster.store.server import start


async def test_a_server_on_a_full_disk_is_not_ready(sqlite: SQLiteStore) -> None:
    served = await start(sqlite, port=0)
    async with aiohttp.ClientSession(served.url) as http:
        for more, status in ((0, 503), (None, 200)):
            limit(sqlite, more)
            async with http.get("/readyz") as ready:
                told = await ready.json()
                assert (ready.status, "full" in str(told["problems"])) == (status, status == 503)
    assert sqlite.db.connection.execute("SELECT count(*) FROM requests").fetchone() == (0,)
    await served.close()
