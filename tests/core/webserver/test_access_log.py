"""The access log: one line a request, only where it is asked for, and no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agentlightning.gateway import Gateway
from agentlightning.gateway.settings import GatewaySection
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.webserver.access_log import VARIABLE, log_requests
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
    gateway = Gateway(client, Keys(b"x" * 16))
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


async def test_a_gateway_with_too_many_requests_says_when_to_ask_again() -> None:
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys(b"x" * 16), GatewaySection(max_requests=1))
    gateway._pipeline.under_way = 1  # as a call that waits for new weights
    url = await gateway.start()
    lease = await store.start_rollout({})
    from agentlightning.gateway import AttemptInfo

    key = gateway.open_attempt(AttemptInfo.of(lease.rollout, lease.attempt, {}))
    async with aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"{url}/chat/completions", json={"model": "m"}, headers=headers) as busy:
            assert busy.status == 503 and busy.headers["Retry-After"] == "1"
            assert (await busy.json())["error"]["code"] == "busy"
    assert gateway._pipeline.under_way == 1 and gateway.metrics.refused["busy"] == 1
    assert (await store.counts(lease.attempt.rollout_id))["refused"] == {"busy": 1}
    await gateway.stop()
    await store.close()
