"""Web pages are refused by the server of a store; programs and holders of a secret are not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from contract.pages import pages_are_refused, programs_are_served, request, send
from core.gateway.test_secrets import HEADERS, refuses_without_logging

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


async def test_an_interface_wants_a_secret(tmp_path: Path) -> None:
    """It says so before anything listens, and before the store's file is opened."""
    with pytest.raises(Exception, match=r"the store on 0\.0\.0\.0 without a token.*AGL_TOKEN"):
        await start(tmp_path / "other.sqlite", "0.0.0.0", 0)
    assert not (tmp_path / "other.sqlite").exists()
    with pytest.raises(Exception, match="AGL_TOKEN is empty"):
        await start(tmp_path / "other.sqlite", port=0, token="")


async def test_the_log_says_it_once(served: ServedStore, caplog: pytest.LogCaptureFixture) -> None:
    async with aiohttp.ClientSession(headers={"Origin": "https://evil.example"}) as session:
        for _ in range(3):
            async with session.get(f"{served.url}/v1/agl/health") as response:
                assert response.status == 403
    assert caplog.text.count("https://evil.example") == 1


@pytest.mark.parametrize("header", HEADERS)
async def test_a_header_that_is_too_long_is_not_logged(
    served: ServedStore, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    caplog.set_level(logging.DEBUG)
    await refuses_without_logging(served.url, header, caplog)
