"""The runner under the seed's name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.running import finish, serving
from core.runner.test_rewards import ran

import agentlightning as agl
from agentlightning.semconv import REWARD_SPAN, REWARD_VALUE
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import PromptTemplate, Rollout, RolloutStatus, Span, UsageError
from agl_v03.lit_agent import LitAgent
from plugins.v03.tests.agents_of_then import CannotCleanUp


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def solve(task: str, prompt_template: PromptTemplate) -> float:
    return float(len(prompt_template.format(any_input=task)))


@pytest.mark.parametrize("tracer", [None, agl.OtelTracer()])
async def test_iter_serves_until_told(store: Store, tracer: object) -> None:
    runner = agl.LitAgentRunner[str](tracer=tracer)
    update = await store.add_resources({"prompt_template": PromptTemplate(template="<{any_input}>")})
    event = threading.Event()
    with runner.run_context(agent=solve, store=store):
        serving = asyncio.create_task(runner.iter(event=event))
        rollout = await store.enqueue_rollout(input="abc", resources_id=update.resources_id)
        [done] = await store.wait_for_rollouts([rollout.rollout_id], timeout=300)
        event.set()
        await asyncio.wait_for(serving, 300)
    assert agl.find_final_reward(await store.query_spans(done.rollout_id)) == 5.0


@pytest.mark.parametrize("tracer", ["typo", "otel", agl.OtelTracer, object(), 7])
def test_what_is_no_tracer_is_refused_by_name(tracer: object) -> None:
    with pytest.raises(UsageError, match=r"tracer=.* is no tracer: give an object, agl\.OtelTracer\(\)"):
        agl.LitAgentRunner[str](tracer=tracer)


async def test_iter_ends_after_so_many(store: Store) -> None:
    ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(3)]
    runner = agl.LitAgentRunner[int](max_rollouts=2)
    with runner.run_context(agent=lambda task: 1.0, store=store):
        await asyncio.wait_for(runner.iter(), 300)
    assert [(await store.get_rollout_by_id(i)).status for i in ids] == ["succeeded", "succeeded", "queuing"]


@pytest.mark.parametrize("given", [{"prompt_template": "{any_input}!"}, None])
async def test_step(store: Store, given: dict[str, str] | None) -> None:
    update = await store.add_resources({"prompt_template": "{any_input}{any_input}"})
    runner = agl.LitAgentRunner[str]()
    with runner.run_context(agent=solve, store=store):
        if given is not None:
            rollout = await runner.step("ab", resources=given, mode="val")
        else:
            rollout = await runner.step("ab", resources_id=update.resources_id)
        with pytest.raises(UsageError, match="either resources or resources_id"):
            await runner.step("ab", resources={}, resources_id="x")
    assert rollout.status == RolloutStatus.SUCCEEDED and rollout.mode == ("train" if given is None else "val")
    assert agl.find_final_reward(await store.query_spans(rollout.rollout_id)) == (3.0 if given else 4.0)


async def test_outside_its_context_it_has_no_agent() -> None:
    with pytest.raises(UsageError, match="there is no agent yet"):
        await agl.LitAgentRunner[str]().iter()


async def test_hooks_hear_of_the_returned_reward(store: Store) -> None:
    heard: list[float] = []

    class Agent(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 1.0

        def on_trace_end(self, task: Any, rollout: Any, spans: list[Span]) -> None:
            heard.extend(s.attributes[REWARD_VALUE] for s in spans if s.name == REWARD_SPAN)

    record = await ran(store, Agent())  # type: ignore[arg-type]
    assert heard == [1.0] and [r.value for r in record.rewards] == [1.0]


async def test_an_error_at_the_end_takes_no_reward_away(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Agent(LitAgent[int]):
        async def rollout_async(self, task: int, resources: Any, rollout: Rollout) -> float:
            return 1.0

        def on_rollout_end(self, task: int, rollout: Rollout, result: Any, error: Any) -> None:
            raise ValueError("cannot clean up")

    async with serving(Agent(), store):
        [rollout] = await finish(store, [1])
    [record] = await store.records([rollout.rollout_id])
    assert [r.value for r in record.rewards] == [1.0] and "on_rollout_end" in caplog.text


@pytest.mark.slow
async def test_an_error_at_the_end_is_counted_where_the_agent_has_a_process_of_its_own(store: Store) -> None:
    agent = CannotCleanUp(3.0)
    async with serving(agent, store, concurrency=1, isolation="process") as runner:
        [rollout] = await finish(store, [2.0])
    [record] = await store.records([rollout.rollout_id])
    assert [r.value for r in record.rewards] == [6.0] and runner.counts["end-hook-failed"] == 1
