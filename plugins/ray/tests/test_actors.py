"""Runners as actors of a Ray cluster: they lease and end as `agl runner` does; dead ones are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer

from agentlightning.decorator.agents import as_agent
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.plugins.manager import build
from agentlightning.plugins.options import open_runner
from agentlightning.specs import RunnerJob
from agentlightning.store import SQLiteStore
from agentlightning.train.config import from_fields
from agentlightning.types import LLM, RolloutConfig, RolloutStatus, UsageError
from agl_cluster.roles import Role
from agl_cluster.store import server
from agl_cluster.store.client import StoreClient
from agl_ray import plugin

PLUGINS = build([plugin], discover=False)
SECRET = "a secret of sixteen bytes or more"
WAIT = 600
HERE = Path(__file__).parent


def job(store: Any, agent: Any = None, **options: Any) -> RunnerJob:
    config = from_fields({"runner": {"kind": "ray", "address": "local", **options}})
    return RunnerJob(config, store, None if agent is None else as_agent(agent))


def test_what_actors_could_not_work_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET)
    with pytest.raises(UsageError, match="serve it with `agl store`"):
        open_runner(PLUGINS, job(SQLiteStore(":memory:")))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"ray is not installed; pip install .*plugins/ray\[client\]"):
        open_runner(PLUGINS, job(StoreClient("http://127.0.0.1:1")))
    with pytest.raises(UsageError, match=r"runner.addres: there is no such option. Did you mean 'address'"):
        open_runner(PLUGINS, job(StoreClient("http://127.0.0.1:1"), addres="auto"))


def test_without_the_stores_secret_there_are_no_tokens_for_actors() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match="set AGL_SECRET"):
        open_runner(PLUGINS, job(StoreClient("http://127.0.0.1:1", "a token of the operator")))


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[server.ServedStore]:
    pytest.importorskip("ray")
    monkeypatch.setenv("AGL_SECRET", SECRET)
    monkeypatch.setenv("AGL_PLUGINS", "")
    monkeypatch.setenv("PYTHONPATH", f"{HERE}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.syspath_prepend(str(HERE))
    opened = await server.start(tmp_path / "s.sqlite", "127.0.0.1", 0)
    yield opened
    await opened.close()


@asynccontextmanager
async def serving(served: server.ServedStore, agent: str, **options: Any) -> AsyncIterator[Any]:
    import agents_in_actors

    client = StoreClient(served.url)
    client.act_as(Role.TRAINER)
    runner = open_runner(
        PLUGINS, job(client, getattr(agents_in_actors, agent), workers=2, cpus=0.1, **options)
    )
    stop = asyncio.Event()
    task = asyncio.create_task(runner.serve(stop))
    try:
        yield runner
    finally:
        stop.set()
        await asyncio.wait_for(task, WAIT)
        await client.close()


async def test_rollouts_run_in_actors_which_call_the_gateway_by_keys_of_the_store(
    served: server.ServedStore,
) -> None:
    gateway = Gateway(served.store, Keys(SECRET.encode()))
    async with ScriptedModelServer() as engine:
        gateway.add_route(Upstream(policy="policy", url=engine.url, model=engine.model))
        await gateway.start()
        llm = LLM(endpoint=gateway.url, model="policy", api_key=CONTEXT_KEY)
        resources = await served.store.add_resources({"llm": llm})
        async with serving(served, "ask") as runner:
            made = [
                await served.store.enqueue_rollout("hi", resources_id=resources.resources_id)
                for _ in range(3)
            ]
            ids = [one.rollout_id for one in made]
            done = await served.store.wait_for_rollouts(ids, timeout=WAIT)
        records = await served.store.records(ids)
        await gateway.stop()
    assert [one.status for one in done] == [RolloutStatus.SUCCEEDED] * 3, [one.reason for one in done]
    assert [len(one.calls) for one in records] == [1] * 3
    assert [one.rewards[-1].value for one in records] == [0.0] * 3  # the agents have no secret and no token
    assert runner.counts == {"succeeded": 3}


async def test_an_actor_that_is_killed_is_replaced_and_counted_and_its_rollout_runs_elsewhere(
    served: server.ServedStore, tmp_path: Path
) -> None:
    file = tmp_path / "go"
    config = RolloutConfig(unresponsive_seconds=3.0)
    made = await served.store.enqueue_rollout(str(file), config=config)
    began = Path(f"{file}.began")
    async with serving(served, "slowly") as runner:
        async with asyncio.timeout(WAIT):
            while not began.exists():
                await asyncio.sleep(0.05)
        os.kill(int(began.read_text().split()[0]), signal.SIGKILL)
        async with asyncio.timeout(WAIT):
            while not runner.counts["restarted"] or len(began.read_text().split()) < 2:
                await asyncio.sleep(0.05)
        file.touch()
        [done] = await served.store.wait_for_rollouts([made.rollout_id], timeout=WAIT)
    assert done.status is RolloutStatus.SUCCEEDED
    attempts = await served.store.query_attempts(made.rollout_id)
    assert len(attempts) == 2 and (attempts[0].reason or "").startswith("unresponsive")
    assert runner.counts["restarted"] == 1


async def test_no_cluster_is_an_error_that_says_what_to_do(served: server.ServedStore) -> None:
    client = StoreClient(served.url)
    runner = open_runner(PLUGINS, job(client, lambda task: 1.0, address="127.0.0.1:1"))
    with pytest.raises(UsageError, match=r"no Ray cluster at '127.0.0.1:1'.*`ray start --head`"):
        await runner.serve(asyncio.Event())
    await client.close()
