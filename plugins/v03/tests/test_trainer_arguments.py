"""``Trainer``, strategies, tracers and the proxy, in the forms that v0.3's programs use."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from openai import AsyncOpenAI
from opentelemetry.trace import Tracer

import agentlightning as agl
import agl_v03.plugin
from agentlightning.plugins.manager import build
from agentlightning.specs import RunnerSpec
from agentlightning.types.sections import Section

TASKS = ["a", "b"]


def trainer(folder: Path, **given: Any) -> agl.Trainer:
    return agl.Trainer(output=folder, trackers=[], plugins=build([agl_v03.plugin], discover=False), **given)


def model_list(url: str) -> list[dict[str, Any]]:
    params = {"model": "openai/scripted", "api_base": url, "api_key": "k"}
    return [{"model_name": "small", "litellm_params": params}]


async def ask(task: str, llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task}]
        )
    return float(answer.choices[0].message.content == f"ok: {task}")


def test_workers_port_and_strategies(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = trainer(tmp_path, n_workers=3, port=9999)
    assert any("Trainer(port=…) has no effect" in str(one.message) for one in caught)
    assert made.config.agent.concurrency == 3
    with pytest.warns(FutureWarning, match="main_process, server_port have no effect"):
        made = trainer(
            tmp_path,
            strategy={"type": "cs", "server_port": 9999, "main_process": "algorithm", "n_runners": 2},
        )
    assert (made.config.agent.isolation, made.config.agent.concurrency) == ("process", 2)
    assert trainer(tmp_path, strategy={"type": "cs", "role": "algorithm"}).config.agent.concurrency == 0
    assert (
        trainer(tmp_path, strategy=agl.SharedMemoryExecutionStrategy(n_runners=5)).config.agent.concurrency
        == 5
    )
    with pytest.raises(agl.UsageError, match="start `agl runner`"):
        trainer(tmp_path, strategy={"type": "cs", "role": "runner"})
    with pytest.raises(agl.UsageError, match="'cs' has no nope"):
        trainer(tmp_path, strategy={"type": "cs", "nope": 1})
    with pytest.raises(agl.UsageError, match=r"runner=…\) of Agent Lightning 0.3"):
        trainer(tmp_path, runner=object())


def test_components_are_objects_classes_by_name_or_mappings(tmp_path: Path) -> None:
    made = trainer(
        tmp_path,
        tracer="agentlightning.tracer.agentops.AgentOpsTracer",
        adapter={"agent_match": "write"},
        hooks=(hook := agl.Hook()),
    )
    assert isinstance(made.tracer, agl.AgentOpsTracer) and made.hooks == (hook,)
    assert made.adapter.selects({"agent": "write_query"}) and not made.adapter.selects({"agent": "check"})
    exporter = {"type": "agentlightning.tracer.triplet.TripletExporter", "agent_match": "check"}
    made = trainer(tmp_path, tracer={"type": "agentlightning.DummyTracer"}, triplet_exporter=exporter)
    assert not made.tracer.captures and made.adapter.selects({"agent": "check"})
    with pytest.raises(agl.UsageError, match=r"has no type: give an object, or the class as 'module\.Class'"):
        trainer(tmp_path, tracer={"daemon": True})


@pytest.mark.slow
def test_the_agents_trained_agents_reach_the_run(tmp_path: Path) -> None:
    """As an adapter's agent_match does, unless the trainer is told otherwise."""

    class Agent(agl.LitAgent[str]):
        def rollout(self, task: str, resources: Any, rollout: agl.Rollout) -> float:
            assert self.trainer.max_tasks is None and self.runner is not None
            return 1.0

    made = trainer(tmp_path, algorithm=agl.Baseline())
    with pytest.raises(agl.UsageError, match="trained_agents: 'wri\\(' is not a regular expression"):
        made.session(Agent(trained_agents="wri("))
    assert made.fit(Agent(trained_agents="write"), TASKS)["baseline"]["train"]["reward"] == 1.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Trainer. 'n_runners':FutureWarning")
def test_dev_makes_fit_a_dry_run(tmp_path: Path) -> None:
    summary = trainer(tmp_path, dev=True, n_runners=1).fit(lambda task: 1.0, TASKS)
    assert summary["baseline"]["train"]["reward"] == 1.0


@pytest.mark.slow
def test_an_algorithm_gets_the_proxy_and_resources_by_name(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    @agl.algo
    async def search(*, store: Any, train_dataset: Any, llm_proxy: Any, initial_resources: Any) -> None:
        seen["names"] = sorted(initial_resources)
        llm_proxy.update_model_list(seen["models"])
        await llm_proxy.start()
        update = await store.add_resources({"llm": llm_proxy.as_resource(model="small")})
        queued = await store.enqueue_rollout(input=train_dataset[0], resources_id=update.resources_id)
        (done,) = await store.wait_for_rollouts([queued.rollout_id])
        spans = await store.query_spans(done.rollout_id)
        seen["reward"] = agl.find_final_reward(spans)
        seen["calls"] = len(await store.query_calls(done.rollout_id))

    with ScriptedModelServer(lambda body: f"ok: {body['messages'][-1]['content']}") as server:
        seen["models"] = model_list(server.url)
        given = {"prompt": agl.PromptTemplate(template="{x}")}
        trainer(tmp_path, algorithm=search, llm_proxy=agl.LLMProxy(), initial_resources=given).fit(ask, TASKS)
    assert seen["reward"] == 1.0 and seen["calls"] == 1 and seen["names"] == ["prompt"]


@pytest.mark.slow
def test_an_algorithm_class_gets_a_plain_dict_of_resources(tmp_path: Path) -> None:
    class Search(agl.Algorithm):
        def run(self, train_dataset: Any = (), val_dataset: Any = ()) -> Any:
            resources = self.get_initial_resources()
            assert resources is not None
            return {name: value.template for name, value in resources.items()}  # type: ignore[union-attr]

    given = {"prompt": agl.PromptTemplate(template="say {x}")}
    summary = trainer(tmp_path, algorithm=Search(), initial_resources=given).fit(ask, TASKS)
    assert summary["prompt"] == "say {x}"


async def test_a_proxy_alone_records_for_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_SECRET", raising=False)
    monkeypatch.setenv("AGL_SECRET", "0" * 32)
    store = agl.InMemoryLightningStore()
    proxy = agl.LLMProxy(store=store)
    with pytest.raises(agl.UsageError, match="not started"):
        proxy.as_resource()
    with ScriptedModelServer(lambda body: f"ok: {body['messages'][-1]['content']}") as server:
        await proxy.restart(model_list=model_list(server.url))
        assert proxy.is_running() and str(proxy).startswith("http://127.0.0.1:")
        runner = agl.LitAgentRunner[str](agl.OtelTracer())
        with runner.run_context(agent=ask, store=store):
            done = await runner.step("hello", resources={"llm": proxy.as_resource()})
        started = await store.start_rollout("own key")
        own = proxy.as_resource(started.rollout_id, started.attempt.attempt_id, model="small")
        assert await ask("own key", own) == 1.0
        with pytest.raises(agl.UsageError, match="no model 'large'"):
            proxy.as_resource(model="large")
        await proxy.stop()
    (call,) = await store.query_calls(done.rollout_id)
    assert call.policy == "small" and agl.find_final_reward(await store.query_spans(done.rollout_id)) == 1.0
    assert len(await store.query_calls(started.rollout_id)) == 1
    assert not proxy.is_running()
    await store.close()


def test_a_proxy_refuses_what_only_litellm_does() -> None:
    with pytest.raises(agl.UsageError, match="launch_mode belongs to LiteLLM"):
        agl.LLMProxy(launch_mode="mp")
    with pytest.raises(agl.UsageError, match="no OpenAI-compatible endpoint"):
        agl.LLMProxy(model_list=[{"model_name": "m", "litellm_params": {"model": "bedrock/m"}}])


async def test_a_trace_context_stores_what_happens_inside() -> None:
    store, tracer = agl.InMemoryLightningStore(), agl.OtelTracer()
    started = await store.start_rollout(input="traced")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context("manual", **ids) as inner:
            assert isinstance(inner, Tracer)
            with inner.start_as_current_span("outer"), inner.start_as_current_span("inner"):
                agl.emit_reward(1.0)
    spans = await store.query_spans(started.rollout_id)
    assert {"outer", "inner", "agentlightning.reward"} <= {s.name for s in spans}
    assert agl.find_final_reward(spans) == 1.0
    assert [s.name for s in tracer.get_last_trace()] == [s.name for s in spans]
    with pytest.raises(agl.UsageError, match="give both"):
        async with tracer.trace_context(rollout_id="ro-1"):
            pass
    await store.close()


async def test_a_hook_reads_the_trace_of_its_attempt() -> None:
    seen: dict[str, list[str]] = {}

    class Debug(agl.Hook):
        async def on_trace_end(self, *, tracer: Any, rollout: agl.Rollout, **others: Any) -> None:
            seen[str(rollout.input)] = [str(s.attributes.get("agl.body")) for s in tracer.get_last_trace()]

    async def agent(task: str) -> float:
        agl.emit_message(f"about {task}")
        return 1.0

    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner[str](agl.OtelTracer())
    with runner.run_context(agent=agent, store=store, hooks=[Debug()]):
        await runner.step("one")
        await runner.step("two")
    assert [one[0] for one in seen.values()] == ["about one", "about two"]
    await store.close()


@pytest.mark.slow
def test_what_a_trainer_was_given_is_read_and_set_as_its_own(tmp_path: Path) -> None:
    made = trainer(tmp_path, algorithm=agl.Baseline(), n_workers=3, hooks=agl.Hook())
    assert made.n_workers == made.n_runners == made.config.agent.concurrency == 3
    assert made.fit_v0 == made.fit and made.adapter is made.llm_proxy is made.max_tasks is None
    made.n_workers, made.hooks = 2, ()
    made.fit(lambda task: 1.0, TASKS)
    assert (made.n_runners, made.config.agent.concurrency) == (2, 2)


def test_hooks_belong_to_the_trainers_process(tmp_path: Path) -> None:
    class Elsewhere:
        @agl.hookimpl
        def agl_runners(self) -> list[RunnerSpec]:
            return [RunnerSpec("elsewhere", lambda job, options: None, lambda: Section, "never started")]

    plugins = build([Elsewhere(), agl_v03.plugin], discover=False)
    made = agl.Trainer(
        agl.Baseline(), output=tmp_path, trackers=[], plugins=plugins, runner="elsewhere", hooks=[object()]
    )
    with pytest.raises(agl.UsageError, match="`runner` names another place"):
        made.fit(lambda task: 1.0, TASKS)


@pytest.mark.parametrize("judged", [True, False])
async def test_a_hooked_agent_is_judged_as_its_own(judged: bool) -> None:
    """The runner notes that a reward function judged the attempt, hooks or not."""

    class Solver:
        def run(self, task: str) -> float:
            return 1.0

    solver = agl.agent(name="solver", reward=lambda result: result)(Solver) if judged else Solver
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner[str]()
    with runner.run_context(agent=solver(), store=store, hooks=[agl.Hook()]):
        done = await runner.step("one")
    (attempt,) = await store.query_attempts(done.rollout_id)
    assert bool(attempt.metadata.get("agl.judged")) is judged
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("tracer", ["typo", agl.DummyTracer, 1])
def test_what_is_no_tracer_is_refused(tracer: Any, tmp_path: Path) -> None:
    with pytest.raises(agl.UsageError, match=r"tracer=.* is no tracer: give an object"):
        trainer(tmp_path, tracer=tracer)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n_runners", "n_workers"])
def test_agent_lightning_0_calls_concurrency_otherwise(name: str) -> None:
    made = agl.Trainer(**{name: 3})
    assert made.config.agent.concurrency == getattr(made, name) == 3
