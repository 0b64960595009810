"""Web pages are refused by store and gateway; programs and holders of a secret are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from contract.pages import pages_are_refused, programs_are_served, request, send

from agentlightning.gateway import AttemptInfo, Gateway
from agentlightning.gateway.settings import GatewaySection
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import ServedStore, start

SECRET = b"0123456789abcdef0123456789abcdef"
TOKEN = "a token of more than sixteen characters"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()


@pytest.fixture
async def served(store: SQLiteStore) -> AsyncIterator[ServedStore]:
    found = await start(store, port=0)
    yield found
    await found.close()


@pytest.fixture
async def gateway(store: SQLiteStore) -> AsyncIterator[Gateway]:
    gateway = Gateway(store, Keys(SECRET))
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/agl/rollouts"),
        ("POST", "/v1/agl/runs/prune"),
        ("DELETE", "/v1/agl/runs/run-1"),
        ("PATCH", "/v1/agl/runs/run-1"),
        ("POST", "/v1/agl/batch"),
        ("POST", "/v1/traces"),
    ],
)
async def test_the_store_refuses_pages(served: ServedStore, method: str, path: str) -> None:
    await served.store.add_run("run-1", {})
    before = await served.store.statistics()
    await pages_are_refused(served.url, method, path, b'{"input": 1, "keep_runs": 0}')
    assert (await served.store.statistics())["rollouts"] == before["rollouts"]
    assert [run["run_id"] for run in await served.store.query_runs()] == ["run-1"]
    refused = (await served.store.counts())["refused"]
    assert refused == {"foreign-host": 5, "foreign-origin": 3, "undeclared-body": 4}


async def test_a_form_without_fields_deletes_nothing(served: ServedStore) -> None:
    """The finding: one click on a page, and every finished run was gone."""
    await served.store.add_run("run-1", {})
    await served.store.update_run("run-1", {"status": "finished"})
    said = await send(served.url, request("POST", "/v1/agl/runs/prune", {"Host": "localhost", **FORM}))
    assert said.status == 415 and [run["run_id"] for run in await served.store.query_runs()] == ["run-1"]


async def test_the_store_serves_programs(served: ServedStore) -> None:
    await programs_are_served(served.url, "POST", "/v1/agl/rollouts", b'{"input": 1}')
    await programs_are_served(served.url, "GET", "/v1/agl/statistics", b"")
    client = StoreClient(served.url)
    assert (await client.enqueue_rollout(1)).input == 1
    await client.close()


async def test_a_token_is_proof_enough(store: SQLiteStore) -> None:
    served = await start(store, port=0, token=TOKEN)
    headers = {"Host": "store.example", "Authorization": f"Bearer {TOKEN}", "Origin": "https://store.example"}
    said = await send(served.url, request("POST", "/v1/agl/rollouts", headers, b'{"input": 1}'))
    assert said.status == 200
    without = {"Host": "store.example", "Content-Type": "application/json"}
    said = await send(served.url, request("POST", "/v1/agl/rollouts", without, b'{"input": 1}'))
    assert said.status == 401
    await served.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
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


async def test_an_interface_wants_a_secret(store: SQLiteStore, tmp_path: Path) -> None:
    """It says so before anything listens, and before the store's file is opened."""
    with pytest.raises(ValueError, match=r"the gateway on 0\.0\.0\.0 without a token.*AGL_SECRET"):
        await Gateway(store, Keys(), GatewaySection(listen="0.0.0.0")).start()
    with pytest.raises(Exception, match=r"the store on 0\.0\.0\.0 without a token.*AGL_TOKEN"):
        await start(tmp_path / "other.sqlite", "0.0.0.0", 0)
    assert not (tmp_path / "other.sqlite").exists()
    with pytest.raises(Exception, match="AGL_TOKEN is empty"):
        await start(tmp_path / "other.sqlite", port=0, token="")


async def test_on_an_interface_any_name_is_the_servers_own(store: SQLiteStore) -> None:
    everywhere = GatewaySection(listen="0.0.0.0", advertise="http://127.0.0.1")
    gateway = Gateway(store, Keys(SECRET), everywhere)
    url = await gateway.start()
    named: dict[str, Any] = {"Host": "trainer.example:8000"}
    assert (await send(url, request("GET", "/health", named))).status == 200
    page = {**named, "Origin": "https://evil.example"}
    assert (await send(url, request("GET", "/health", page))).status == 403
    await gateway.stop()


async def test_the_log_says_it_once(served: ServedStore, caplog: pytest.LogCaptureFixture) -> None:
    async with aiohttp.ClientSession(headers={"Origin": "https://evil.example"}) as session:
        for _ in range(3):
            async with session.get(f"{served.url}/v1/agl/health") as response:
                assert response.status == 403
    assert caplog.text.count("https://evil.example") == 1
