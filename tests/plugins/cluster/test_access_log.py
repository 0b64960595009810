"""The access log: one line a request, only where it is asked for, and no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agl_cluster.access_log import VARIABLE, log_requests
from agl_cluster.gateways.watched import WatchedGateway
from agl_cluster.store import server
from agl_cluster.store.client import StoreClient

SECRET = "a-token-that-nobody-may-read"


def test_there_is_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    app = web.Application()
    log_requests(app, "store")
    assert not app.middlewares


async def test_store_and_gateway_write_a_line_a_request_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "access.jsonl"
    monkeypatch.setenv(VARIABLE, str(log))
    served = await server.start(SQLiteStore(":memory:"), port=0, token=SECRET)
    client = StoreClient(served.url, SECRET)
    await client.enqueue_rollout({"task": "whose text is nobody's business"})
    gateway = WatchedGateway(client, Keys(b"x" * 16))
    url = await gateway.start()
    async with aiohttp.ClientSession() as http:
        key = {"Authorization": f"Bearer {SECRET}"}
        await http.post(f"{url}/chat/completions?key={SECRET}", json={"prompt": "private"}, headers=key)
        await http.get(f"{served.url}/no/such/page")
    await gateway.stop()
    await client.close()
    await served.close()
    text = log.read_text()
    assert SECRET not in text and "private" not in text and "business" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    seen = {(line["server"], line["method"], line["path"].split("/")[-1], line["status"]) for line in lines}
    assert {("gateway", "POST", "completions", 401), ("store", "GET", "page", 404)} <= seen
    assert all(line["seconds"] >= 0 and line["from"] == "127.0.0.1" for line in lines)


async def test_the_stores_metrics_ask_for_a_token_where_the_store_does() -> None:
    served = await server.start(SQLiteStore(":memory:"), port=0, token=SECRET)
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{served.url}/metrics") as refused:
            assert refused.status == 401
        async with http.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {SECRET}"}) as page:
            assert page.status == 200
            assert 'agl_store_requests_total{route="/metrics",status="401"} 1.0' in await page.text()
    await served.close()
