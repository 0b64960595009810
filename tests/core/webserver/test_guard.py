"""Web pages are refused by the gateway; programs and holders of a secret are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from contract.pages import pages_are_refused, request, send

from agentlightning.gateway import AttemptInfo, Gateway
from agentlightning.gateway.settings import GatewaySection
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore

SECRET = b"0123456789abcdef0123456789abcdef"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()


@pytest.fixture
async def gateway(store: SQLiteStore) -> AsyncIterator[Gateway]:
    gateway = Gateway(store, Keys(SECRET))
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_gateway_refuses_pages(gateway: Gateway, store: SQLiteStore, path: str) -> None:
    await pages_are_refused(gateway.url, "POST", path, b"{}")
    for open_to_all in ("/metrics", "/v1/models", "/health"):
        said = await send(gateway.url, request("GET", open_to_all, {"Host": "evil.example"}))
        assert said.status == 403, open_to_all
        said = await send(gateway.url, request("GET", open_to_all, {"Host": "localhost"}))
        assert said.status == 200, open_to_all
    assert (await store.counts())["refused"] == {"foreign-host": 8, "foreign-origin": 3, "undeclared-body": 4}


async def test_a_key_is_proof_enough(gateway: Gateway) -> None:
    """A gateway behind a proxy, or called by ``curl -d``, has what no page has: the attempt's key."""
    key = gateway.open_attempt(AttemptInfo(rollout_id="ro-1", attempt_id="at-1"))
    headers = {"Host": "gateway.example", "Authorization": f"Bearer {key}", **FORM}
    said = await send(gateway.url, request("POST", "/v1/chat/completions", headers, b"{}"))
    assert said.status == 404 and b"no-route" in said.body  # nothing is served here; it was let in
    headers["Authorization"] = "Bearer agl-" + "A" * 80
    said = await send(gateway.url, request("POST", "/v1/chat/completions", headers, b"{}"))
    assert said.status == 403


async def test_an_interface_wants_a_secret(store: SQLiteStore) -> None:
    """It says so before anything listens."""
    with pytest.raises(ValueError, match=r"the gateway on 0\.0\.0\.0 without a token.*AGL_SECRET"):
        await Gateway(store, Keys(), GatewaySection(listen="0.0.0.0")).start()


async def test_on_an_interface_any_name_is_the_servers_own(store: SQLiteStore) -> None:
    everywhere = GatewaySection(listen="0.0.0.0", advertise="http://127.0.0.1")
    gateway = Gateway(store, Keys(SECRET), everywhere)
    url = await gateway.start()
    named: dict[str, Any] = {"Host": "trainer.example:8000"}
    assert (await send(url, request("GET", "/health", named))).status == 200
    page = {**named, "Origin": "https://evil.example"}
    assert (await send(url, request("GET", "/health", page))).status == 403
    await gateway.stop()


async def test_the_log_says_it_once(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    async with aiohttp.ClientSession(headers={"Origin": "https://evil.example"}) as session:
        for _ in range(3):
            async with session.get(f"{gateway.url}/models") as response:
                assert response.status == 403
    assert caplog.text.count("https://evil.example") == 1
