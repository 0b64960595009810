"""Agents of Agent Lightning 0.1 to 0.3 as their programs have them, on a real gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
from agl_testing import ScriptedModelServer
from opentelemetry import trace as otel

import agentlightning as agl
from agentlightning.credit.verdicts import verdicts
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore
from agentlightning.types import Record, Rollout
from plugins.v03 import agents_of_then as agents


class Place(NamedTuple):
    """A store, a gateway before a scripted model, and a way to run an agent once."""

    store: SQLiteStore
    gateway: Gateway
    model: ScriptedModelServer

    async def run(self, agent: Any, task: Any = "hello", mode: Any = "train", **fields: Any) -> Rollout:
        llm = agl.LLM(endpoint=self.gateway.url, model="small", api_key="agl-context")
        resources = await self.store.add_resources({"llm": llm})
        options = {name: fields.pop(name) for name in ("isolation",) if name in fields}
        settings = RunnerSection(concurrency=1, timeout_seconds=None, **options)
        runner = Runner(agent, self.store, settings, attempt_keys=self.gateway)
        try:
            return await runner.step(task, resources.resources_id, mode=mode, **fields)
        finally:
            await runner.close()

    async def record(self, rollout: Rollout) -> Record:
        (found,) = await self.store.records([rollout.rollout_id])
        return found


@pytest.fixture
async def place(captured: None) -> AsyncIterator[Place]:
    store = SQLiteStore(":memory:")
    with ScriptedModelServer(lambda body: f"ok: {body['messages'][-1]['content']}") as model:
        gateway = Gateway(store, Keys(b"0" * 32))
        gateway.add_route(Upstream(policy="small", url=model.url, model=model.model))
        await gateway.start()
        yield Place(store, gateway, model)
        await gateway.stop()
    await store.close()


@pytest.fixture
def captured() -> Any:
    from agentlightning.capture.installation import capturing

    with capturing([]):
        yield


@pytest.mark.parametrize(("metadata", "temperature"), [({}, 1.0), ({"greedy": True}, 0.0)])
async def test_an_agent_of_03_finds_what_it_asks_for(
    place: Place, metadata: dict[str, Any], temperature: float
) -> None:
    agent = agents.OfV03()
    done = await place.run(agent, mode="val", metadata=metadata)
    assert done.status == "succeeded", done.reason
    record = await place.record(done)
    assert agl.find_final_reward(await place.store.query_spans(done.rollout_id)) == 1.0
    (judged,) = verdicts(record).values()
    assert judged.kind == "exact", judged  # a key of its own, and yet the attempt's call
    assert agent.seen["ids"] == (True, record.attempt.attempt_id, 1)
    assert agent.seen["temperature"] == temperature
    assert agent.seen["trace"] == ["openai.chat.completion"]
    assert agent.trained_agents == "write" and agents.OfV01().trained_agents is None


async def test_outside_a_rollout_an_agent_has_no_tracer() -> None:
    with pytest.raises(AttributeError, match=r"OfV03\.tracer: there is none here; a rollout has its tracer"):
        _ = agents.OfV03().tracer


async def test_an_agent_of_01_is_called_as_then_and_hands_in_its_transitions(place: Place) -> None:
    done = await place.run(agents.Transitions(), "second", mode="val")  # no validation method: the training's
    assert done.status == "succeeded", done.reason
    record = await place.record(done)
    first, second = record.calls
    assert (
        second.response_ids is not None and [one.kind for one in verdicts(record).values()] == ["exact"] * 2
    )
    (reward,) = record.rewards
    assert (reward.value, reward.call_id) == (10.0, second.call_id) and first.call_id != second.call_id
    assert record.attempt.metadata["agl.supplied"] == [second.call_id]  # the other does not count


async def test_the_store_gets_no_ids_twice(place: Place) -> None:
    """The ids in the agent's own trace are not stored beside those of the gateway."""
    done = await place.run(agents.OfV03())
    (wire,) = (await place.record(done)).wire
    assert "agl.prompt_token_ids" not in wire.attributes and "agl.tokens_digest" in wire.attributes


async def test_the_trace_has_its_ids_in_a_worker_process(place: Place) -> None:
    done = await place.run(agents.InWorker(), isolation="process")
    assert done.status == "succeeded", done.reason
    assert agl.find_final_reward(await place.store.query_spans(done.rollout_id)) == 2.0


class Reports(agl.LitAgent[Any]):
    """Returns what the task makes."""

    async def training_rollout_async(self, task: Any, rollout_id: str, resources: agl.NamedResources) -> Any:
        return task


@pytest.mark.parametrize(
    ("result", "reward"),
    [
        (lambda: agl.RolloutLegacy(rollout_id="any", final_reward=0.5), 0.5),
        (lambda: agl.RolloutLegacy(rollout_id="any"), None),
    ],
)
async def test_what_a_runner_of_01_reported_may_be_returned(
    place: Place, result: Callable[[], Any], reward: float | None
) -> None:
    class Returning(Reports):
        async def training_rollout_async(self, task: Any, rollout_id: str, resources: Any) -> Any:
            return result()

    done = await place.run(Returning())
    assert done.status == "succeeded", done.reason
    assert agl.find_final_reward(await place.store.query_spans(done.rollout_id)) == reward


async def test_spans_of_opentelemetry_are_returned_and_kept_once(place: Place) -> None:
    class Returning(Reports):
        async def training_rollout_async(self, task: Any, rollout_id: str, resources: Any) -> Any:
            with otel.get_tracer("own").start_as_current_span("step") as span:
                pass
            return [span]

    done = await place.run(Returning())
    assert done.status == "succeeded", done.reason
    assert [span.name for span in await place.store.query_spans(done.rollout_id)].count("step") == 1


async def test_a_transition_may_be_made_by_the_names_of_then(place: Place) -> None:
    class Making(Reports):
        async def training_rollout_async(self, task: Any, rollout_id: str, resources: Any) -> Any:
            return [agl.Triplet(prompt={"token_ids": [1, 2]}, response={"token_ids": [3]}, reward=1.0)]  # type: ignore[call-arg]

    record = await place.record(await place.run(Making()))
    (call,) = record.calls
    assert call.prompt_ids is not None and call.response_ids is not None
    assert (list(call.prompt_ids), list(call.response_ids), record.rewards[0].value) == ([1, 2], [3], 1.0)
    with pytest.raises(TypeError, match="prompt is str, not"):
        agl.Triplet(prompt="text", response_ids=[1])  # type: ignore[call-arg]


async def test_hooks_of_then_get_the_whole_task_and_the_report(place: Place) -> None:
    heard: list[Any] = []

    class Hooked(Reports):
        def on_rollout_start(self, task: Any, runner: Any, tracer: Any) -> None:  # type: ignore[override]
            heard.append((task.input, task.rollout_id[:3], tracer.get_last_trace()))

        def on_rollout_end(self, task: Any, rollout: Any, runner: Any, tracer: Any) -> None:  # type: ignore[override]
            heard.append((task.input, rollout.final_reward, rollout.rollout_id == task.rollout_id))

    await place.run(Hooked(), 0.25)
    assert heard == [(0.25, "ro-", []), (0.25, 0.25, True)]


def test_trained_agents_choose_what_a_run_trains() -> None:
    from agl_v03.trainer_arguments import adapter_for

    chosen = adapter_for(agents.OfV03(), None, None)
    assert chosen.selects({"agent": "rewrite_query"}) and not chosen.selects({"agent": "check_query"})
    mine = agl.TracerTraceToTriplet(agent_match="check")
    assert adapter_for(agents.OfV03(), mine, None) is mine  # what the trainer says comes first
    assert adapter_for(agents.OfV03(), None, ["check"]) is None
    assert adapter_for(agents.OfV03(trained_agents=None), None, None) is None
