"""The runner at a store that is asked over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.running import finish, reason, serving
from core.runner.test_runner import leases_left

from agentlightning import emit_annotation
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import RolloutStatus
from agl_cluster.store import client as store_client, server
from agl_cluster.store.client import StoreClient


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


async def test_spans_beyond_one_request_fail_their_attempt_not_the_runner(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def agent(task: int) -> float:
        emit_annotation({"text": "x" * task})
        return 1.0

    served = await server.start(store, port=0)
    client = StoreClient(served.url)
    monkeypatch.setattr(store_client, "BODY_LIMIT", 1 << 20)
    async with serving(agent, client):
        bad, good = await finish(client, [2 << 20, 1])
    assert (await reason(client, bad)).startswith("bad-record: ") and "MiB" in await reason(client, bad)
    assert good.status == RolloutStatus.SUCCEEDED
    await client.close()
    await served.close()


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_no_lease_is_lost_when_serving_ends(tmp_path: Path, how: str) -> None:
    served = await server.start(tmp_path / "s.sqlite", "127.0.0.1", 0)
    client = StoreClient(served.url)
    try:
        assert await leases_left(served.store, client, how) <= {RolloutStatus.QUEUING}
    finally:
        await client.close()
        await served.close()
