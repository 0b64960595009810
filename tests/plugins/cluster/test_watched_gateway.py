"""The gateway's page for Prometheus, which is the gateway's own state in another form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from core.gateway.conftest import SECRET, Engine

from agentlightning.gateway import AttemptInfo, Upstream
from agentlightning.gateway.settings import CallSection
from agentlightning.keys import Keys
from agentlightning.specs import GatewayJob
from agentlightning.store import SQLiteStore
from agentlightning.train.config import from_fields
from agl_cluster.gateways import watched
from agl_cluster.gateways.watched import WatchedGateway
from agl_cluster.plugin import agl_gateways

JSON, TEXT = {"Accept": "application/json"}, {"Accept": "text/plain"}


@pytest.fixture
async def world() -> AsyncIterator[SimpleNamespace]:
    """A gateway before an engine, that has answered one call and refused one, and holds a policy."""
    engine, store = Engine(), SQLiteStore(":memory:")
    await engine.start()
    gateway = WatchedGateway(store, Keys(SECRET))
    gateway.add_route(Upstream(url=engine.url, model="tiny", api_key="engine-secret"))
    url = await gateway.start()
    lease = await store.start_rollout({})
    key = gateway.open_attempt(AttemptInfo.of(lease.rollout, lease.attempt, {}))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as http:
        for bearer, status in ((key, 200), ("wrong", 401)):
            headers = {"Authorization": f"Bearer {bearer}"}
            async with http.post(f"{url}/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == status, await answer.text()
        await gateway.hold("default")
        yield SimpleNamespace(http=http, page=url.removesuffix("/v1") + "/metrics", engine=engine.url)
    await gateway.stop()
    await store.close()
    await engine.runner.cleanup()


async def test_every_entry_of_the_state_but_the_names_of_replayed_streams_is_a_metric(world: Any) -> None:
    async with world.http.get(world.page) as answer:
        assert answer.content_type == "text/plain"
        text = await answer.text()
    assert 'agl_gateway_calls_total{status="ok"} 1.0' in text
    assert 'agl_gateway_refused_total{reason="unknown-key"} 1.0' in text
    assert 'agl_gateway_engine_answered_total{endpoint="0",policy="default"} 1.0' in text
    assert 'agl_gateway_policy_held{policy="default"} 1.0' in text
    assert "agl_gateway_in_flight 0.0" in text
    shown = {*watched.LABELLED, *watched.PLAIN, *watched.GATE, "engines", "policies_held", "replayed_kinds"}
    async with world.http.get(world.page, headers=JSON) as answer:
        assert {*await answer.json()} == shown


@pytest.mark.parametrize("accept", [JSON, TEXT])
async def test_an_agent_that_reads_it_finds_no_address_to_ask_past_the_gateway(
    world: Any, accept: dict[str, str]
) -> None:
    async with world.http.get(world.page, headers=accept) as answer:
        text = await answer.text()
    assert "agl_gateway_calls" in text or '"calls":{"ok":1}' in text
    assert world.engine.removesuffix("/v1").removeprefix("http://") not in text and "secret" not in text
    foreign = {**accept, "Origin": "http://elsewhere.example"}
    async with world.http.get(world.page, headers=foreign) as answer:
        assert answer.status == 403


async def test_a_runs_gateway_is_watched() -> None:
    store = SQLiteStore(":memory:")
    job = GatewayJob(from_fields({}), CallSection(), store, Keys(SECRET), on_call=None)
    async with agl_gateways(job) as gateway:
        assert isinstance(gateway, WatchedGateway) and gateway.url.startswith("http://127.0.0.1:")
    await store.close()
