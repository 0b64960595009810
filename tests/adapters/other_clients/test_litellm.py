"""LiteLLM's calls of a run's gateway go through the openai SDK, also where LiteLLM has its own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from agl_testing import ScriptedModelServer

import agentlightning as agl
from agentlightning.capture.installation import capturing
from agentlightning.credit.verdicts import verdicts
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore

litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM's own
ASKED = {"messages": [{"role": "user", "content": "hello"}], "num_retries": 0}


class Place(NamedTuple):
    store: SQLiteStore
    gateway: Gateway
    model: ScriptedModelServer


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    """LiteLLM keeps its clients for the life of a process."""
    from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

    yield
    await close_litellm_async_clients()


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    from agentlightning.capture.adapter import LiteLLMInstrumentor

    store = SQLiteStore(":memory:")
    with ScriptedModelServer(lambda body: "ok") as model, capturing([LiteLLMInstrumentor()]):
        gateway = Gateway(store, Keys(b"0" * 32))
        gateway.add_route(Upstream(policy="small", url=model.url, model=model.model))
        await gateway.start()
        yield Place(store, gateway, model)
        await gateway.stop()
    await store.close()


@pytest.mark.parametrize("prefix", ["hosted_vllm/", "openai/"])
@pytest.mark.parametrize("how", ["acompletion", "completion", "by position"])
async def test_a_call_is_the_attempts_and_exact(place: Place, prefix: str, how: str) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        given: dict[str, Any] = {**ASKED, "api_base": llm.endpoint}
        if prefix == "openai/":
            given["api_key"] = llm.api_key
        if how == "completion":
            said = await asyncio.to_thread(litellm.completion, model=prefix + llm.model, **given)
        elif how == "by position":
            said = await litellm.acompletion(prefix + llm.model, given.pop("messages"), **given)
        else:
            said = await litellm.acompletion(model=prefix + llm.model, **given)
        return float(said.choices[0].message.content == "ok")

    llm = agl.LLM(endpoint=place.gateway.url, model="small", api_key="agl-context")
    resources = await place.store.add_resources({"llm": llm})
    settings = RunnerSection(concurrency=1, timeout_seconds=None)
    runner = Runner(agent, place.store, settings, attempt_keys=place.gateway)
    done = await runner.step("x", resources.resources_id)
    assert done.status == "succeeded", done.reason
    (record,) = await place.store.records([done.rollout_id])
    assert [one.kind for one in verdicts(record).values()] == ["exact"]


async def test_calls_of_other_servers_stay_as_they_are(place: Place) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        said = await litellm.acompletion(
            model="hosted_vllm/scripted", api_base=place.model.url, api_key="mine", **ASKED
        )
        return float(said.choices[0].message.content == "ok")

    llm = agl.LLM(endpoint=place.gateway.url, model="small", api_key="agl-context")
    resources = await place.store.add_resources({"llm": llm})
    runner = Runner(agent, place.store, RunnerSection(concurrency=1), attempt_keys=place.gateway)
    done = await runner.step("x", resources.resources_id)
    assert done.status == "succeeded", done.reason
    (exchange,) = place.model.log
    assert (
        exchange.headers["authorization"] == "Bearer mine"
        and "openai" not in exchange.headers["user-agent"].lower()
    )
    assert (await place.store.records([done.rollout_id]))[0].calls == []
