"""What is AgentScope 1.0's own: hubs and pipelines, several tools at once, hooks, its tracer, its memory."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("agentscope.memory", reason="AgentScope 1 is not installed")  # 2 has none

import agentscope
from agentscope.agent import AgentBase, ReActAgent
from agentscope.formatter import OpenAIChatFormatter, OpenAIMultiAgentFormatter
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.pipeline import MsgHub, fanout_pipeline
from agentscope.tool import Toolkit, ToolResponse
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from opentelemetry import trace
from pydantic import BaseModel, Field

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agl_agentscope.entries import entry_methods
from agl_agentscope.instrumentor import AgentScopeInstrumentor
from agl_agentscope.plugin import agl_adapters


def said(text: str = "go") -> Msg:
    return Msg("user", text, "user")


def text(value: object) -> ToolResponse:
    return ToolResponse([TextBlock(type="text", text=str(value))])


async def add(a: int, b: int) -> ToolResponse:
    """Add two numbers."""
    return text(a + b)


@pytest.fixture(autouse=True)
def instrumented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AGENTSCOPE_DISABLE_CONSOLE_OUTPUT", "true")
    COUNTS.clear()
    AgentScopeInstrumentor().instrument(raise_exception_on_conflict=True)
    yield
    AgentScopeInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[OpenAIChatModel]:
    kwargs = {"base_url": server.url, "max_retries": 0}
    model = OpenAIChatModel("policy", api_key="agl-context", client_kwargs=kwargs)  # streams by default
    yield model
    await model.client.close()


def solver(model: Any, *functions: Any, name: str = "solver", **kwargs: Any) -> ReActAgent:
    toolkit = Toolkit()
    for function in functions:
        toolkit.register_tool_function(function)
    return ReActAgent(name, f"You are {name}.", model, OpenAIChatFormatter(), toolkit, **kwargs)


@feature("multi-agent")
async def test_agents_of_a_fan_out_in_a_hub_are_named(server: ScriptedModelServer, model: Any) -> None:
    recording = Recording("hub", server.url)
    with recording.active():
        agents = [
            ReActAgent(name, f"You are {name}.", model, OpenAIMultiAgentFormatter())
            for name in ("wolf", "villager", "seer")
        ]
        async with MsgHub(agents, announcement=said("night falls")):
            await fanout_pipeline(agents, said("speak"), enable_gather=True)
            await agents[0](said("again"))
    assert sorted(map(str, recording.agents()[:3])) == ["seer", "villager", "wolf"]
    assert recording.agents()[3] == "wolf"
    answered = {span.attributes[semconv.RESPONSE_ID]: span for span in recording.calls}
    for exchange in server.log:
        name = answered[exchange.response_id].attributes[semconv.AGENT_NAME]
        assert f"You are {name}." in str(exchange.body["messages"][0]["content"])


@pytest.mark.parametrize("at_once", [True, False])
@feature("tools")
async def test_parallel_tool_calls_keep_their_own_results(
    server: ScriptedModelServer, model: Any, at_once: bool
) -> None:
    calls = [tool_call("add", {"a": n, "b": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    replies = iter([{"role": "assistant", "content": None, "tool_calls": calls}, "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("parallel", server.url)
    with recording.active():
        await solver(model, add, parallel_tool_calls=at_once)(said())
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["a"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in recording.named("execute_tool")
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}


@feature("multi-agent")
async def test_an_agent_as_a_tool_speaks_for_itself(server: ScriptedModelServer, model: Any) -> None:
    inner = solver(model, name="inner")

    async def ask(question: str) -> ToolResponse:
        """Ask the other agent."""
        return text((await inner(said(question))).get_text_content())

    def script(body: dict[str, Any]) -> Any:
        asked = "ask" in str(body.get("tools")) and body["messages"][-1]["role"] != "tool"
        return tool_call("ask", {"question": "what?"}) if asked else "done"

    server.reply = script
    recording = Recording("nested", server.url)
    with recording.active():
        await solver(model, ask, name="outer")(said())
    assert recording.agents() == ["outer", "inner", "outer"]
    (tool,) = recording.named("execute_tool")
    (nested,) = [span for span in recording.named("invoke_agent") if span.name.endswith("inner")]
    assert tool.attributes[semconv.AGENT_NAME] == "outer" and nested.parent_id == tool.span_id
    assert_exact(recording, server.log)


@feature("tools")
async def test_a_tool_that_streams_runs_in_its_span(server: ScriptedModelServer, model: Any) -> None:
    async def count(to: int) -> AsyncGenerator[ToolResponse, None]:
        """Count."""
        for n in range(to):
            agl.emit_object(f"at {n}")
            yield text(" ".join(map(str, range(n + 1))))

    replies = iter([tool_call("count", {"to": 3}), "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("streaming", server.url)
    with recording.active():
        await solver(model, count)(said())
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "0 1 2"
    assert [span.parent_id for span in recording.named(semconv.MESSAGE_SPAN)] == [tool.span_id] * 3


@feature("tools")
async def test_an_unknown_tool_leaves_an_error_span(server: ScriptedModelServer, model: Any) -> None:
    replies = iter([tool_call("subtract", {"a": 1}), "sorry"])
    server.reply = lambda body: next(replies)
    recording = Recording("unknown", server.url)
    with recording.active():
        await solver(model, add)(said())
    (tool,) = recording.named("execute_tool")
    assert tool.status == "error" and tool.attributes[semconv.TOOL_NAME] == "subtract"
    assert "FunctionNotFoundError" in tool.attributes[semconv.TOOL_CALL_RESULT]


async def test_an_agent_of_ones_own_is_named(server: ScriptedModelServer, model: Any) -> None:
    class Plain(AgentBase):
        name = "plain"

        async def reply(self, msg: Msg) -> Msg:
            async for _ in await model([{"role": "user", "content": "hello"}]):
                pass
            return Msg(self.name, "done", "assistant")

        async def observe(self, msg: Any) -> None:
            pass

    recording = Recording("plain", server.url)
    with recording.active():
        await Plain()(said())
        async for _ in await model([{"role": "user", "content": "nobody's"}]):
            pass
    assert recording.agents() == ["plain", None]
    assert_exact(recording, server.log)


@feature("structured")
async def test_structured_output(server: ScriptedModelServer, model: Any) -> None:
    class Answer(BaseModel):
        number: int = Field(description="the number")

    def script(body: dict[str, Any]) -> Any:
        finish = body.get("tools") and body["messages"][-1]["role"] != "tool"
        return tool_call("generate_response", {"number": 42}) if finish else "forty-two"

    server.reply = script
    recording = Recording("structured", server.url)
    with recording.active():
        message = await solver(model)(said(), structured_model=Answer)
    assert message.metadata == {"number": 42}
    assert set(recording.agents()) == {"solver"}
    assert_exact(recording, server.log)


@feature("tools")
async def test_the_next_prompt_has_the_arguments_anew(server: ScriptedModelServer, model: Any) -> None:
    """AgentScope 1 writes the arguments again, so the second row of the agent begins anew."""
    replies = iter([tool_call("add", '{"a": 17,  "b":25}'), "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("anew", server.url)
    with recording.active():
        await solver(model, add)(said())
    first, second = server.log
    whole = [*first.prompt_ids, *first.answers[0].ids]
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert second.prompt_ids[: len(whole)] != whole
    assert_exact(recording, server.log)


async def test_a_marked_class_names_its_calls(server: ScriptedModelServer, model: Any) -> None:
    seen: list[str] = []

    class Mine(ReActAgent):
        pass

    assert agl.agent(name="hero", methods=entry_methods(Mine))(Mine) is Mine
    mine = Mine("solver", "Solve.", model, OpenAIChatFormatter())
    mine.register_instance_hook("pre_reply", "seen", lambda agent, kwargs: seen.append(agent.name))
    recording = Recording("marked", server.url)
    with recording.active():
        await mine(said())
    assert recording.agents() == ["hero"] and seen == ["solver"]
    assert isinstance(mine, ReActAgent) and type(Mine) is type(ReActAgent)
    assert_exact(recording, server.log)


async def test_an_agent_made_before_is_known(server: ScriptedModelServer, model: Any) -> None:
    AgentScopeInstrumentor().uninstrument()
    agent = solver(model)
    AgentScopeInstrumentor().instrument()
    recording = Recording("before", server.url)
    with recording.active():
        await agent(said())
    assert recording.agents() == ["solver"]


async def test_agentscopes_own_tracer_may_be_on(
    server: ScriptedModelServer, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agentscope._config, "trace_enabled", True)
    recording = Recording("tracer", server.url)
    with recording.active():
        await solver(model)(said())
    assert recording.agents() == ["solver"]
    assert len(recording.named("invoke_agent")) == 2  # ours, and the one that the user asked for
    assert_exact(recording, server.log)


async def test_agents_are_known_without_spans(
    server: ScriptedModelServer, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    recording = Recording("dark", server.url)
    with recording.active():
        await solver(model)(said())
    assert recording.agents() == ["solver"]
    assert [span.name for span in recording.spans] == [semconv.CALL_SPAN]


async def test_a_prompt_that_is_too_long_raises(server: ScriptedModelServer, model: Any) -> None:
    server.reply = lambda body: Reply(status=400, message="too long")
    recording = Recording("long", server.url)
    with recording.active(), pytest.raises(Exception, match="too long"):
        await solver(model)(said())
    (call,) = recording.calls
    (agent,) = recording.named("invoke_agent")
    assert call.status == agent.status == "error" and "too long" in (agent.status_message or "")


async def test_outside_an_attempt_agents_run_as_ever(server: ScriptedModelServer, model: Any) -> None:
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "done"])
    server.reply = lambda body: next(replies)
    assert (await solver(model, add)(said())).get_text_content() == "done"
    assert COUNTS.snapshot() == {}


def test_entry_methods() -> None:
    assert entry_methods(ReActAgent) == entry_methods(AgentBase) == ("reply",)
    assert entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("agentscope", "agentscope")
    assert spec.instrumentor() is AgentScopeInstrumentor()
    assert spec.entry_methods is not None and spec.entry_methods(ReActAgent) == ("reply",)
    assert list(AgentScopeInstrumentor().instrumentation_dependencies()) == [spec.requires]


def test_the_registry_is_empty_after_uninstrument() -> None:
    AgentScopeInstrumentor().uninstrument()
    AgentScopeInstrumentor().instrument()
