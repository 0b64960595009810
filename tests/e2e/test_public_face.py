"""The store-centred face: a row for every promise, in the form it is promised in, working end to end.

What belongs to later work stands here as a strict xfail: the day it works, its row says so.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from agl_testing import ScriptedModelServer, tool_call
from e2e.agents_for_face import ask, elsewhere
from marks import sampled
from openai import AsyncOpenAI, OpenAI
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from typer.testing import CliRunner

import agentlightning as agl
import agl_cluster.plugin
import agl_v03.plugin
from agentlightning.plugins.manager import build
from agentlightning.store.base import Store
from agl_v03 import tracer

REPOSITORY = Path(__file__).parents[2]
MESSAGES: list[Any] = [{"role": "user", "content": "two and two?"}]


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    """A model in a thread of its own, so that synchronous agents may ask it too."""
    with ScriptedModelServer(lambda body: f"ok: {body['messages'][-1]['content']}") as running:
        yield running


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Any]:
    opened = agl.LightningStore(tmp_path / "store.sqlite")
    yield opened
    await opened.close()


def llm_at(server: ScriptedModelServer) -> agl.LLM:
    asking = {"return_token_ids": True}
    return agl.LLM(endpoint=server.url, model="scripted", api_key="none", sampling_parameters=asking)


def trainer(folder: Path, algorithm: Any = "grpo", **options: Any) -> agl.Trainer:
    plugins = build([agl_v03.plugin, agl_cluster.plugin], discover=False)
    return agl.Trainer(algorithm, output=folder, trackers=[], plugins=plugins, **options)


async def run_one(store: Any, agent: Any, server: ScriptedModelServer, task: Any = "task") -> agl.Rollout:
    """One rollout of ``agent``, as a person would run it."""
    runner = agl.LitAgentRunner[str](tracer=agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        return await runner.step(task, resources={"llm": llm_at(server), "prompt_template": "{task}?"})


# ------------------------------------------------------------------------------------------- the store
def test_agl_store_listens_on_4747_by_default() -> None:
    from agentlightning.cli import app

    shown = CliRunner().invoke(app(), ["store", "--help"])
    assert shown.exit_code == 0 and "4747" in shown.output
    assert agl.LightningStoreClient("http://localhost:4747").url == "http://localhost:4747"


@pytest.mark.slow
async def test_any_start_order_of_runner_algorithm_and_store(tmp_path: Path) -> None:
    """Runner and algorithm come first and wait; the store is started last, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://localhost:{port}"
    runners, algorithm = agl.LightningStoreClient(url), agl.LightningStoreClient(url)
    runner, stop = agl.LitAgentRunner[str](tracer=agl.AgentOpsTracer()), asyncio.Event()
    with runner.run_context(agent=lambda task, prompt_template: 1.0, store=runners):
        serving = asyncio.create_task(runner.iter(event=stop))
        adding = asyncio.create_task(algorithm.add_resources(resources={"prompt_template": "Say {x}"}))
        await asyncio.wait([serving, adding], timeout=0.05)
        assert not serving.done() and not adding.done()
        command = [
            sys.executable,
            "-c",
            "from _agl_main import main; main()",
            "store",
            str(tmp_path),
            "--port",
            str(port),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            resources = await adding
            rollout = await algorithm.enqueue_rollout(input="hello", resources_id=resources.resources_id)
            (done,) = await algorithm.wait_for_rollouts([rollout.rollout_id])
            assert done.status == "succeeded"
            assert agl.find_final_reward(await algorithm.query_spans(rollout.rollout_id)) == 1.0
            stop.set()
            await serving
        finally:
            await runners.close()
            await algorithm.close()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=300)


def test_the_client_has_the_methods_of_the_store() -> None:
    methods = [name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")]
    client = agl.LightningStoreClient("http://localhost:4747")
    assert len(methods) > 30
    for name in methods:
        promised = inspect.signature(getattr(Store, name)).parameters
        kept = inspect.signature(getattr(type(client), name)).parameters
        assert set(promised) <= set(kept), name


async def test_a_store_from_nothing_is_durable() -> None:
    store = agl.LightningStore()
    made = await store.enqueue_rollout(input={"question": "?"})
    await store.close()
    again = agl.LightningStore()
    assert isinstance(again, agl.LightningStore)
    assert (await again.get_rollout_by_id(made.rollout_id)).input == {"question": "?"}
    await again.close()
    assert (Path.home() / ".agent-lightning" / "store.sqlite").exists()


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}/store.sqlite"])
async def test_agl_storage_names_a_place(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STORAGE", form.format(tmp_path))
    store = agl.LightningStore()
    await store.enqueue_rollout(input=1)
    await store.close()
    assert (tmp_path / "store.sqlite").exists()


async def test_agl_storage_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STORAGE", "http://localhost:4747")
    store = agl.LightningStore()
    assert type(store) is agl.LightningStoreClient and isinstance(store, agl.LightningStore)


@pytest.mark.parametrize("prompt", ["Say {x}", agl.PromptTemplate(template="Say {x}", engine="f-string")])
async def test_resources_are_prompts_or_plain_strings(prompt: Any, store: Any) -> None:
    update = await store.add_resources(resources={"prompt_template": prompt})
    assert update.resources_id.startswith("rs-")
    kept = (await store.get_resources_by_id(update.resources_id)).resources["prompt_template"]
    assert kept.format(x="hi") == "Say hi"
    rollout = await store.enqueue_rollout(input="task", resources_id=update.resources_id)
    assert rollout.rollout_id.startswith("ro-")
    lease = await store.dequeue_rollout()
    assert lease.attempt.attempt_id.startswith("at-")


async def test_waiting_takes_both_forms(store: Any, server: ScriptedModelServer) -> None:
    done = await run_one(store, ask, server)
    assert [r.rollout_id for r in await store.wait_for_rollouts([done.rollout_id])] == [done.rollout_id]
    assert len(await store.wait_for_rollouts(rollout_ids=[done.rollout_id], timeout=1.0)) == 1
    open_one = await store.enqueue_rollout(input="never run")
    assert await store.wait_for_rollouts(rollout_ids=[open_one.rollout_id], timeout=0.0) == []


async def test_a_rollout_prints_as_json(store: Any, server: ScriptedModelServer) -> None:
    done = await run_one(store, ask, server)
    shown = json.loads((await store.get_rollout_by_id(done.rollout_id)).model_dump_json(indent=None))
    assert shown["status"] == "succeeded" and shown["mode"] == "train" and shown["input"] == "task"
    assert shown["start_time"] <= shown["end_time"]
    assert {"config", "metadata"} <= set(shown)
    assert [r.rollout_id for r in await store.query_rollouts(status=["succeeded"])] == [done.rollout_id]


async def test_spans_tell_of_calls_and_rewards(store: Any, server: ScriptedModelServer) -> None:
    done = await run_one(store, ask, server)
    spans = await store.query_spans(done.rollout_id)
    assert "openai.chat.completion" in "\n".join(map(str, spans))
    (call,) = (s.attributes for s in spans if s.name == "openai.chat.completion")
    assert call["gen_ai.request.model"] == call["gen_ai.response.model"] == "scripted"
    assert call["gen_ai.usage.input_tokens"] > 0 and call["gen_ai.usage.output_tokens"] > 0
    assert "task?" in call["gen_ai.input.messages"] and "ok: task?" in call["gen_ai.output.messages"]
    assert call["gen_ai.response.finish_reasons"] == ["stop"]
    assert call["gen_ai.response.id"] == server.log[0].response_id
    assert agl.find_final_reward(spans) == 1.0
    assert [agl.get_reward_value(s) for s in agl.find_reward_spans(spans)] == [1.0]


# -------------------------------------------------------------------------------------- runner, agents
def plain(task: str, prompt_template: agl.PromptTemplate) -> float:
    return float(prompt_template.format(x=task) == "Say hi")


async def coroutine(task: str, prompt_template: agl.PromptTemplate) -> float:
    return plain(task, prompt_template)


class Lit(agl.LitAgent[str]):
    def rollout(self, task: str, resources: dict[str, Any], rollout: agl.Rollout) -> float:
        return plain(task, resources["prompt_template"])


@pytest.mark.parametrize(
    "agent", [plain, coroutine, agl.rollout(plain), Lit()], ids=lambda a: type(a).__name__
)
async def test_the_runner_runs_agents_of_every_form(agent: Any, store: Any) -> None:
    runner = agl.LitAgentRunner[str](tracer=agl.AgentOpsTracer())
    update = await store.add_resources(resources={"prompt_template": "Say {x}"})
    rollout = await store.enqueue_rollout(input="hi", resources_id=update.resources_id)
    stop = threading.Event()
    with runner.run_context(agent=agent, store=store):
        serving = asyncio.create_task(runner.iter(event=stop))
        await store.wait_for_rollouts([rollout.rollout_id])
        assert not serving.done()  # it serves until it is stopped
        stop.set()
        await serving
        stepped = await runner.step("bye", resources_id=update.resources_id)
    assert agl.find_final_reward(await store.query_spans(rollout.rollout_id)) == 1.0
    assert agl.find_final_reward(await store.query_spans(stepped.rollout_id)) == 0.0


def test_prompt_templates_have_two_engines() -> None:
    assert agl.PromptTemplate(template="Say {x}", engine="f-string").format(x="hi") == "Say hi"
    assert agl.PromptTemplate(template="Say {{ x }}", engine="jinja").format(x="hi") == "Say hi"


async def test_model_endpoints_are_resources(store: Any) -> None:
    llm = agl.LLM(endpoint="http://127.0.0.1:1/v1", model="m", sampling_parameters={"temperature": 0.5})
    proxy = agl.ProxyLLM(endpoint="http://127.0.0.1:2/v1", model="m")
    update = await store.add_resources(resources={"llm": llm, "proxy": proxy})
    kept = (await store.get_resources_by_id(update.resources_id)).resources
    assert kept == {"llm": llm, "proxy": proxy} and type(kept["proxy"]) is agl.ProxyLLM
    assert kept["proxy"].get_base_url("ro-1", "at-1") == "http://127.0.0.1:2/v1"
    assert kept["llm"].get_base_url() == "http://127.0.0.1:1/v1"


async def test_emitters_work_in_threads_and_tasks(store: Any, server: ScriptedModelServer) -> None:
    async def agent(task: str) -> None:
        with agl.operation("search", query=task) as found:
            agl.emit_message("looking")
            found.output = 3
        await asyncio.gather(asyncio.to_thread(agl.emit_object, {"n": 1}), asyncio.to_thread(fails))
        agl.emit_annotation({"mood": "good"})
        agl.emit_reward(0.5)

    def fails() -> None:
        agl.emit_exception(ValueError("handled"))

    done = await run_one(store, agent, server)
    spans = await store.query_spans(done.rollout_id)
    kinds = {s.name.removeprefix("agentlightning.") for s in spans}
    assert {"operation", "message", "object", "exception", "annotation", "reward"} <= kinds
    assert len({s.attempt_id for s in spans}) == 1 and agl.find_final_reward(spans) == 0.5


TOOLS: list[Any] = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_a_tool_call_is_made_recorded_and_returned(form: str, store: Any) -> None:
    def sync_agent(task: str) -> float:
        answer = agl.emit_tool_call(
            model="scripted", messages=MESSAGES, tools=TOOLS, context={"phase": "search"}
        )
        return float(answer.choices[0].message.tool_calls[0].function.name == "search")

    async def async_agent(task: str) -> float:
        answer = await agl.emit_tool_call(
            model="scripted", messages=MESSAGES, tools=TOOLS, context={"phase": "search"}
        )
        return float(answer.choices[0].message.tool_calls[0].function.name == "search")

    with ScriptedModelServer(lambda body: tool_call("search", {"q": 1})) as server:
        done = await run_one(store, sync_agent if form == "sync" else async_agent, server)
    spans = await store.query_spans(done.rollout_id)
    assert agl.find_final_reward(spans) == 1.0
    (call,) = (s.attributes for s in spans if s.name == "openai.chat.completion")
    assert call["agl.tag.phase"] == "search"
    assert server.log[0].body["tools"] == TOOLS


def test_a_tool_call_outside_an_attempt_says_where_it_belongs() -> None:
    with pytest.raises(agl.UsageError, match="outside an attempt"):
        agl.emit_tool_call(model="m", messages=MESSAGES)


class Modes(agl.LitAgent[str]):
    """Says which entry ran, and hears of every moment, in its own order of arguments."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def training_rollout(self, task: str, resources: dict[str, Any], rollout: agl.Rollout) -> float:
        return 1.0

    async def validation_rollout_async(
        self, task: str, resources: dict[str, Any], rollout: agl.Rollout
    ) -> float:
        return 2.0

    def on_rollout_start(self, rollout: agl.Rollout, task: str) -> None:  # type: ignore[override]
        self.heard.append(("rollout start", task, rollout.mode))

    async def on_trace_start(self, task: str, rollout: agl.Rollout) -> None:
        self.heard.append("trace start")

    def on_trace_end(self, spans: Any) -> None:  # type: ignore[override]
        self.heard.append(("trace end", [agl.get_reward_value(s) for s in agl.find_reward_spans(spans)]))

    def on_rollout_end(self, task: str, runner: Any, result: Any) -> None:  # type: ignore[override]
        self.heard.append(("rollout end", result))


async def test_agents_have_modes_and_hooks(store: Any) -> None:
    agent, runner = Modes(), agl.LitAgentRunner[str]()
    with runner.run_context(agent=agent, store=store):
        trained = await runner.step("a", mode="train")
        held_out = await runner.step("b", mode="val")
    assert agl.find_final_reward(await store.query_spans(trained.rollout_id)) == 1.0
    assert agl.find_final_reward(await store.query_spans(held_out.rollout_id)) == 2.0
    assert agent.heard == [
        *[("rollout start", "a", "train"), "trace start", ("trace end", [1.0]), ("rollout end", 1.0)],
        *[("rollout start", "b", "val"), "trace start", ("trace end", [2.0]), ("rollout end", 2.0)],
    ]


async def test_transitions_of_the_agents_own_survive(store: Any) -> None:
    def agent(task: str) -> list[agl.Triplet]:
        return [
            agl.Triplet(prompt_ids=[1, 2], response_ids=[3], reward=0.25),
            agl.Triplet(prompt_ids=[1, 2, 3, 4], response_ids=[5, 6], reward=0.75),
        ]

    runner = agl.LitAgentRunner[str]()
    with runner.run_context(agent=agent, store=store):
        done = await runner.step("task")
    (record,) = await store.records([done.rollout_id])
    assert [(c.prompt_ids, c.response_ids) for c in record.calls] == [([1, 2], [3]), ([1, 2, 3, 4], [5, 6])]
    by_call = {r.call_id: r.value for r in record.rewards}
    assert [by_call[c.call_id] for c in record.calls] == [0.25, 0.75]


# --------------------------------------------------------------------------------------------- tracing
def test_any_run_is_traced_without_a_store(
    server: ScriptedModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tracer is agl.tracer
    with tracer.trace("my-agent", {"question": "<2 & 2>"}) as run:
        with agl.operation("think"), OpenAI(base_url=server.url, api_key="x") as client:
            client.chat.completions.create(model="scripted", messages=MESSAGES)
        agl.emit_reward(1.0)
        run.output = "four"
    last = tracer.last_trace()
    assert last is run and agl.find_final_reward(last.spans) == 1.0
    (root,) = last.tree
    assert root.name == "my-agent" and [n.name for n in root.children] == ["think", "reward"]
    (call,) = root.children[0].children
    assert call.kind == "call" and call.facts["answer"] == "ok: two and two?"
    drawn = last.visualize("tree_graph", path=tmp_path)
    assert drawn == tmp_path / "tree_graph.svg"
    texts = [e.text or "" for e in ElementTree.parse(drawn).iter() if e.tag.endswith("text")]
    assert "my-agent" in texts and any("<2\xa0&\xa02>" in t for t in texts)
    assert re.search(r"think.*\n.*◆.*\n.*ok: two and two\?", capsys.readouterr().out)


async def test_a_trace_inside_an_attempt_belongs_to_it(store: Any, server: ScriptedModelServer) -> None:
    async def agent(task: str, llm: agl.LLM, prompt_template: agl.PromptTemplate) -> float:
        with agl.tracer.trace("inner", task):
            return await ask(task, llm, prompt_template)

    done = await run_one(store, agent, server)
    spans = await store.query_spans(done.rollout_id)
    (call,) = (s for s in spans if s.name == "openai.chat.completion")
    (inner,) = (s for s in spans if s.attributes.get("agl.operation.name") == "inner")
    assert call.parent_id == inner.span_id
    assert {s.span_id for s in agl.tracer.last_trace().spans} == {call.span_id, inner.span_id}


def test_a_trace_keeps_what_failed() -> None:
    with pytest.raises(ZeroDivisionError), tracer.trace("broken"):
        _ = 1 / 0
    (root,) = tracer.last_trace().tree
    assert root.error == "ZeroDivisionError: division by zero"


async def test_spans_of_agentops_flow_into_the_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """AgentOps, like others, makes a provider of its own and sets it: its client stays the user's."""
    agentops = types.ModuleType("agentops")
    agentops.__spec__ = importlib.util.spec_from_loader("agentops", loader=None)
    monkeypatch.setitem(sys.modules, "agentops", agentops)
    provider = TracerProvider(shutdown_on_exit=False)

    def agent(task: str) -> float:
        with provider.get_tracer("agentops").start_as_current_span("agentops.session"):
            return 1.0

    runner = agl.LitAgentRunner[str](tracer=agl.AgentOpsTracer())
    monkeypatch.setattr(otel, "_TRACER_PROVIDER", provider)
    with runner.run_context(agent=agent, store=store):
        done = await runner.step("task")
    assert otel.get_tracer_provider() is provider
    assert "agentops.session" in {s.name for s in await store.query_spans(done.rollout_id)}


def test_without_agentops_its_tracer_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="agl_v03"):
        agl.AgentOpsTracer()
    assert ("AgentOps is not installed" in caplog.text) == (importlib.util.find_spec("agentops") is None)


async def test_the_dummy_tracer_does_not_capture(store: Any, server: ScriptedModelServer) -> None:
    runner = agl.LitAgentRunner[str](tracer=agl.DummyTracer())
    with runner.run_context(agent=ask, store=store):
        done = await runner.step("t", resources={"llm": llm_at(server), "prompt_template": "{task}"})
    assert [s.name for s in await store.query_spans(done.rollout_id)] == ["agentlightning.reward"]
    with pytest.raises(agl.UsageError, match="always captured"):
        agl.LitAgentRunner[str](tracer=agl.DummyTracer(), isolation="process")


# ------------------------------------------------------------------------------------------ converters
async def two_agents(task: str, llm: agl.LLM) -> None:
    """A solver and a critic, each with a call; the solver's judge is not its work."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for name in ("solver", "critic"):
            with agl.tagged(agent=name):
                await client.chat.completions.create(model=llm.model, messages=MESSAGES)
            agl.emit_reward(0.5 if name == "solver" else 0.25, final=False)
        with agl.operation("reward"):
            await client.chat.completions.create(model=llm.model, messages=MESSAGES)


async def test_spans_become_triplets_with_the_exact_ids(store: Any, server: ScriptedModelServer) -> None:
    done = await run_one(store, two_agents, server)
    spans = await store.query_spans(done.rollout_id)
    solver, critic = agl.TracerTraceToTriplet().adapt(spans)
    exchange = server.log[0]
    assert solver.prompt_ids == exchange.prompt_ids and solver.response_ids == exchange.answers[0].ids
    assert solver.logprobs == exchange.answers[0].logprobs
    assert (solver.tags["agent"], solver.reward) == ("solver", 0.5)
    assert (critic.tags["agent"], critic.reward) == ("critic", 0.25)
    judged = agl.TracerTraceToTriplet(exclude_llm_call_in_reward=False, reward_match="first_sibling")
    assert [t.reward for t in judged.adapt(spans)] == [0.5, 0.25, None]
    (chosen,) = agl.TracerTraceToTriplet(
        agent_match="sol", llm_call_match=r"openai\.chat\.completion", reward_match="first_occurrence"
    ).adapt(spans)
    assert chosen.tags["agent"] == "solver"


@pytest.mark.slow
async def test_calls_of_the_gateway_become_triplets(tmp_path: Path, server: ScriptedModelServer) -> None:
    """Through the gateway, with capture off: ids and tags are the gateway's, rewards go by arrival."""
    from agentlightning.gateway import Upstream

    trained = trainer(tmp_path, tracer=agl.DummyTracer(), initial_resources={"prompt_template": "{task}?"})
    async with trained.session(ask, serve_policy=False) as context:
        context.gateway.add_route(Upstream(policy="policy", url=server.url, model="scripted", trainable=True))
        bundle = {
            "llm": agl.ProxyLLM(endpoint=context.gateway.url, model="policy"),
            "prompt_template": "{task}?",
        }
        update = await context.store.add_resources(bundle)
        rollout = await context.store.enqueue_rollout(
            input="a", resources_id=update.resources_id, run_id=context.run_id
        )
        await context.guard(context.store.wait_for_rollouts([rollout.rollout_id]))
        spans = await context.store.query_spans(rollout.rollout_id)
    (triplet,) = agl.LlmProxyTraceToTriplet().adapt(spans)
    assert triplet.prompt_ids == server.log[0].prompt_ids
    assert triplet.response_ids == server.log[0].answers[0].ids and triplet.reward == 1.0
    (said,) = agl.TraceToMessages().adapt(spans)
    assert said["messages"] == [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "ok: a?"},
    ]
    (call,) = (s.attributes for s in spans if s.name == "openai.chat.completion")
    assert call["gen_ai.prompt.0.content"] == "a?" and call["gen_ai.completion.0.content"] == "ok: a?"


async def test_spans_become_messages(store: Any) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
            await client.chat.completions.create(model=llm.model, messages=MESSAGES, tools=TOOLS)
        return 1.0

    with ScriptedModelServer(lambda body: tool_call("search", {"q": 1})) as server:
        done = await run_one(store, agent, server)
    (said,) = agl.TraceToMessages().adapt(await store.query_spans(done.rollout_id))
    question, answer = said["messages"]
    assert question == MESSAGES[0] and answer["content"] is None
    assert answer["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"q": 1}'}


@pytest.mark.slow
async def test_a_name_chooses_the_agents_that_are_trained(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    from agentlightning.gateway import Upstream

    chosen = trainer(tmp_path, "grpo", adapter=agl.TracerTraceToTriplet(agent_match="^sol"))
    async with chosen.session(two_agents, serve_policy=False) as context:
        context.gateway.add_route(Upstream(policy="policy", url=server.url, model="scripted", trainable=True))
        proxy = agl.ProxyLLM(endpoint=context.gateway.url, model="policy")
        update = await context.store.add_resources({"llm": proxy})
        rollout = await context.store.enqueue_rollout(
            input="a", resources_id=update.resources_id, run_id=context.run_id
        )
        await context.guard(context.store.wait_for_rollouts([rollout.rollout_id]))
        calls = await context.store.query_calls(rollout.rollout_id)
    assert [(c.tags.get("agent"), c.selected) for c in calls] == [
        ("solver", True),
        ("critic", False),
        (None, False),
    ]


def test_a_recipe_takes_of_a_converter_which_agents_are_trained() -> None:
    from agl_v03.converters.triplets import selection

    chosen = selection(agl.TracerTraceToTriplet(agent_match="^write"), None)
    assert chosen({"agent": "writer"}) and not chosen({"agent": "critic"}) and not chosen({})
    with pytest.raises(agl.UsageError, match="would ignore reward_match"):
        selection(agl.TracerTraceToTriplet(reward_match="first_sibling"), None)
    with pytest.raises(agl.UsageError, match="both choose"):
        selection(agl.TracerTraceToTriplet(agent_match="a"), "b")


# ------------------------------------------------------------------------------- trainer, algorithms
def resources(server: ScriptedModelServer) -> dict[str, Any]:
    return {"llm": llm_at(server), "prompt_template": agl.PromptTemplate(template="{task}?")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*n_runners. is now called:FutureWarning")
def test_an_algorithm_is_a_function_that_names_what_it_wants(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    @agl.algo
    async def best_prompt(*, store: Any, train_dataset: Any, val_dataset: Any, adapter: Any, llm_proxy: str,
                          initial_resources: Any, trainer: Any) -> dict[str, Any]:  # fmt: skip
        scores = {}
        for prompt in ("{task}!", "{task}?"):
            bundle = {**initial_resources, "prompt_template": prompt}
            update = await store.add_resources(resources=bundle)
            rollout = await store.enqueue_rollout(input=train_dataset[0], resources_id=update.resources_id)
            (done,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=300)
            (triplet,) = adapter.adapt(await store.query_spans(done.rollout_id))
            scores[prompt] = triplet.reward
        return {"scores": scores, "proxy": llm_proxy, "held_out": len(val_dataset), "n": trainer.n_runners}

    summary = trainer(
        tmp_path,
        algorithm=best_prompt,
        n_runners=2,
        store=tmp_path / "shared.sqlite",
        tracer=agl.OtelTracer(),
        adapter=agl.TracerTraceToTriplet(),
        strategy="shm",
        initial_resources=resources(server),
    ).fit(ask, ["a"], val_dataset=["b"])
    assert summary["scores"] == {"{task}!": 1.0, "{task}?": 1.0}
    assert summary["proxy"].startswith("http://127.0.0.1") and summary["held_out"] == 1 and summary["n"] == 2
    assert [e.body["messages"][0]["content"] for e in server.log] == ["a!", "a?"]


@pytest.mark.slow
def test_a_plain_function_and_a_class_are_algorithms(tmp_path: Path) -> None:
    def plainly(store: Any, train_dataset: Any) -> int:
        made = asyncio.run(store.enqueue_rollout(input=train_dataset[0]))
        return len(asyncio.run(store.wait_for_rollouts([made.rollout_id])))

    class Search(agl.Algorithm):
        async def run(self, train_dataset: Any = (), val_dataset: Any = ()) -> dict[str, Any]:
            store = self.get_store()
            made = await store.enqueue_rollout(input=train_dataset[0], mode="val")
            (done,) = await store.wait_for_rollouts([made.rollout_id])
            return {"status": done.status, "mine": self.get_trainer() is not None}

    def agent(task: str) -> float:
        return 1.0

    assert trainer(tmp_path, plainly).fit(agent, ["a"])["result"] == 1
    assert trainer(tmp_path, Search()).fit(agent, ["a"])["status"] == "succeeded"
    with pytest.raises(agl.UsageError, match="asks for 'gpus'; there is adapter, context"):
        agl.algo(lambda gpus: None)


@pytest.mark.slow
def test_the_baseline_says_what_there_is_to_beat(
    tmp_path: Path, server: ScriptedModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainer(tmp_path, agl.Baseline(), initial_resources=resources(server))
    found = run.fit(ask, ["a", "b"], ["c"])["baseline"]
    assert found["train"]["rewards"] == [1.0, 1.0] and found["val"]["rewards"] == [1.0]
    assert "baseline, train: mean reward 1.000" in capsys.readouterr().err
    assert agl.FAST is agl.Baseline


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, "shm", {"type": "shm", "n_runners": 1}])
def test_dev_is_a_quick_run(strategy: Any, tmp_path: Path, server: ScriptedModelServer) -> None:
    run = trainer(tmp_path, strategy=strategy, initial_resources=resources(server))
    found = run.dev(ask, [str(n) for n in range(9)], tasks=3)["baseline"]
    assert found["train"]["n"] == len(server.log) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    sampled(["cs", {"type": "cs", "n_runners": 1}, agl.ClientServerExecutionStrategy(n_runners=1)], 1),
)
def test_client_server_runs_agents_in_processes(strategy: Any, tmp_path: Path) -> None:
    found = trainer(tmp_path, strategy=strategy, concurrency=1).dev(elsewhere, [os.getpid()])["baseline"]
    assert found["train"]["rewards"] == [1.0]


@pytest.mark.slow
def test_shared_memory_runs_agents_here(tmp_path: Path) -> None:
    strategy = agl.SharedMemoryExecutionStrategy()
    found = trainer(tmp_path, strategy=strategy).dev(elsewhere, [os.getpid()])["baseline"]
    assert found["train"]["rewards"] == [0.0]
    with pytest.raises(agl.UsageError, match="use 'shm'"):
        trainer(tmp_path, strategy="ipc")


@pytest.mark.slow
def test_hooks_hear_of_every_moment(tmp_path: Path) -> None:
    class Listening(agl.Hook):
        heard: list[str] = []

        async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: agl.Rollout) -> None:
            self.heard.append(f"start {rollout.input} {type(runner).__name__} {tracer!r}")

        def on_rollout_end(self, *, agent: Any, runner: Any, rollout: agl.Rollout, spans: Any) -> None:
            self.heard.append(f"end {agl.find_final_reward(spans)}")
            raise ValueError("a hook's trouble is not the rollout's")

    def agent(task: str) -> float:
        return 0.5

    run = trainer(tmp_path, hooks=[Listening()], tracer=agl.OtelTracer())
    summary = run.dev(agent, ["a"])
    assert Listening.heard == ["start a Runner OtelTracer()", "end 0.5"]
    assert summary["baseline"]["train"]["rewards"] == [0.5]
    assert summary["accounts"]["runner"] == {"end-hook-failed": 1}


@pytest.mark.slow
@pytest.mark.plugins
def test_verl_is_an_algorithm_by_its_own_configuration() -> None:
    config = {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {"train_batch_size": 32},
        "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"optim": {"lr": 1e-6}}},
    }
    trainer = agl.Trainer(algorithm=agl.VERL(config), policy="somewhere")
    assert (trainer.config.backend.driver, trainer.config.training.batch_size, trainer.recipe.group_size) == (
        "verl",
        32,
        4,
    )
    assert trainer.config.backend.options == {"lr": 1e-6, "weight_decay": 0.01}


# -------------------------------------------------------------------------------------- prompt search
@pytest.mark.plugins
def test_prompt_optimisation_takes_the_arguments_of_v03() -> None:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="sk-x")
    algorithm = agl.APO[dict[str, str]](
        client, gradient_model="m1", apply_edit_model="m2", val_batch_size=10, gradient_batch_size=4,
        beam_width=2, branch_factor=2, beam_rounds=2, diversity_temperature=1.0,
        rollout_batch_timeout=60.0, run_initial_validation=True,
    )  # fmt: skip
    assert (algorithm.critic.model, algorithm.editor.model) == ("m1", "m2")
    assert algorithm.critic.endpoint == "http://127.0.0.1:9/v1"
    assert (algorithm.beam_width, algorithm.branch_factor, algorithm.beam_rounds) == (2, 2, 2)
