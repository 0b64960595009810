"""Runners on other machines make the keys of their attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from core.gateway.conftest import engine as engine
from core.runner.test_leases import Book

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.gateway.settings import GatewaySection
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.runner.attempt import with_attempt_key
from agentlightning.runner.runner import Runner
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import LLM, RolloutStatus
from agl_cluster.runners.attempt_keys import RemoteAttemptKeys


async def test_an_agent_elsewhere_reaches_the_gateway_by_its_public_address(engine: Any) -> None:
    """It listens on every interface; the runner has the secret, and the address of the resources."""
    keys = Keys(b"a secret that both of them have")
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, keys, GatewaySection(listen="0.0.0.0", advertise="http://127.0.0.2"))
    gateway.add_route(Upstream(url=engine.url, model="tiny"))
    url = await gateway.start()
    assert url.startswith("http://127.0.0.2:")
    lease = await store.start_rollout({})
    info = AttemptInfo.of(lease.rollout, lease.attempt, {})
    published: dict[str, Any] = {"llm": LLM(endpoint=url, model="m", api_key=CONTEXT_KEY)}
    theirs = RemoteAttemptKeys(Keys(b"a secret that both of them have"))
    found, _, _ = with_attempt_key(published, theirs, info)
    llm = found["llm"]
    assert isinstance(llm, LLM)
    body = {"model": llm.model, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    place = f"{llm.endpoint}/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(place, json=body, headers=headers) as answer:
        assert answer.status == 200
    assert len(await store.query_calls(info.rollout_id)) == 1
    await gateway.stop()
    await store.close()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


async def test_a_remote_gates_key_is_one_of_the_run(store: Store) -> None:
    keys, seen = Keys(b"x" * 16), []

    async def agent(task: Any, llm: LLM) -> float:
        seen.append(keys.check(llm.api_key or ""))
        return 1.0

    llm = LLM(endpoint="http://127.0.0.1:7/v1", model="m", api_key=CONTEXT_KEY)
    await store.add_resources({"llm": llm})
    rollout = await Runner(agent, store, attempt_keys=RemoteAttemptKeys(Keys(b"x" * 16))).step(1)
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None and rollout.status == RolloutStatus.SUCCEEDED
    assert [(c.rollout_id, c.attempt_id) for c in seen] == [(rollout.rollout_id, attempt.attempt_id)]


def test_an_attempt_keeps_to_the_gateway_that_its_own_runner_would_choose() -> None:
    urls = [f"http://127.0.0.1:{port}/v1" for port in (7, 8, 9)]
    ours = LLM(endpoint=urls[0], replicas=urls[1:], model="m", api_key=CONTEXT_KEY)
    for number in range(30):
        info = AttemptInfo(rollout_id="ro", attempt_id=f"at-{number}")
        _, _, url = with_attempt_key({"a": ours}, Book(), info)
        found, _, _ = with_attempt_key({"a": ours}, RemoteAttemptKeys(Keys(b"x" * 16)), info)
        (resource,) = found.values()
        assert isinstance(resource, LLM) and resource.endpoint == url and not resource.replicas
