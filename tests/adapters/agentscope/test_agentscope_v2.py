"""What is AgentScope 2's own: the clock, pipelines, consent, streams given up, its tracer and its retries."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("agentscope", minversion="2", reason="AgentScope 2 is not installed")

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentscope.message import UserMsg
from agentscope.middleware import TracingMiddleware
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from opentelemetry import trace
from pydantic import BaseModel

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.semconv import PARTIAL
from agl_agentscope import v2
from agl_agentscope.entries import entry_methods
from agl_agentscope.instrumentor import AgentScopeInstrumentor
from agl_agentscope.plugin import agl_adapters

IGNORED_SCOPES = InjectionConfig(inject_runtime_state=False)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def solver(model: Any, *functions: Any, name: str = "solver", asked: bool = False, **kwargs: Any) -> Agent:
    """An agent whose tools run without a person's consent, unless ``asked``."""
    mode = PermissionMode.DEFAULT if asked else PermissionMode.BYPASS
    state = AgentState(permission_context=PermissionContext(mode=mode))
    toolkit = Toolkit(tools=[FunctionTool(function) for function in functions])
    return Agent(name, f"You are {name}.", model, toolkit, state=state, **kwargs)


def said(text: str = "go") -> UserMsg:
    return UserMsg(name="user", content=text)


@pytest.fixture(autouse=True)
def instrumented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    COUNTS.clear()
    monkeypatch.setattr(v2, "_warned", [])
    AgentScopeInstrumentor().instrument(raise_exception_on_conflict=True)
    yield
    AgentScopeInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[OpenAIChatModel]:
    credential = OpenAICredential(api_key="agl-context", base_url=server.url)
    kwargs = {"max_retries": 0}
    model = OpenAIChatModel(credential, "policy", max_retries=0, client_kwargs=kwargs)  # streams by default
    yield model
    await model.client.close()


def reminders(server: ScriptedModelServer) -> list[str]:
    prompts = (json.dumps(exchange.body["messages"]) for exchange in server.log)
    return [prompt for prompt in prompts if "<current-time>" in prompt]


# ------------------------------------------------------------------------------------------- the clock
async def test_the_clock_is_off_in_rollouts_and_that_is_said(
    server: ScriptedModelServer, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "three", "fine", "three", "fine"])
    recording = Recording("clock", server.url)
    agents = [solver(model, add) for _ in range(2)]
    server.reply = lambda body: next(replies)
    with recording.active(), caplog.at_level(logging.WARNING):
        await agents[0].reply(said())
        await agents[0].reply(said("and again?"))
    (once,) = [record for record in caplog.records if record.name == "agl_agentscope.v2"]
    assert v2.NO_TIME in once.getMessage()
    assert len(reminders(server)) == 3
    for text in reminders(server):
        assert text.count(f"<current-time>{v2.NO_TIME}</current-time>") == text.count("<current-time>") == 1
        assert "<timezone>UTC</timezone>" in text
    assert agents[0].injection_config == InjectionConfig()
    assert_exact(recording, server.log)
    server.log.clear()
    await agents[1].reply(said())  # outside a rollout it ticks
    assert reminders(server) and not [text for text in reminders(server) if v2.NO_TIME in text]


async def test_the_members_of_a_group_answer_the_same_prompt(
    server: ScriptedModelServer, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import datetime, timedelta

    import agentscope.agent._agent as module

    offset = iter(range(1, 1000))

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=next(offset))

    monkeypatch.setattr(module, "datetime", Later)
    recording = Recording("group", server.url)
    with recording.active():
        for _ in range(3):
            await solver(model).reply(said())
    assert len({tuple(exchange.prompt_ids) for exchange in server.log}) == 1


async def test_a_user_without_the_reminder_has_none(
    server: ScriptedModelServer, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording("quiet", server.url)
    with recording.active():
        await solver(model, injection_config=IGNORED_SCOPES).reply(said())
    assert not reminders(server) and not [r for r in caplog.records if r.name == "agl_agentscope.v2"]


# ------------------------------------------------------------------------------------- agents and tools
@feature("multi-agent")
async def test_a_team_pipeline_names_leader_and_members(server: ScriptedModelServer, model: Any) -> None:
    pipeline = pytest.importorskip("agentscope.pipeline")
    if not hasattr(pipeline, "TeamPipeline"):
        pytest.skip("this AgentScope has no TeamPipeline")

    def script(body: dict[str, Any]) -> Any:
        assigns = body.get("tools") and body["messages"][-1]["role"] != "tool"
        return tool_call("TeamAssign", {"member": "worker", "prompt": "help"}) if assigns else "done"

    server.reply = script
    recording = Recording("team", server.url)
    leader = solver(model, name="leader", injection_config=IGNORED_SCOPES)
    worker = solver(model, name="worker", injection_config=IGNORED_SCOPES)
    with recording.active():
        team = pipeline.TeamPipeline(leader, [pipeline.TeamMember(agent=worker, description="works")])
        async for _ in team.reply_stream(said()):
            pass
    assert recording.agents() == ["leader", "worker", "leader"]
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.AGENT_NAME] == "leader"
    assert json.loads(tool.attributes[semconv.TOOL_CALL_ARGUMENTS])["member"] == "worker"
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_an_agent_as_a_tool_speaks_for_itself(server: ScriptedModelServer, model: Any) -> None:
    inner = solver(model, name="inner", injection_config=IGNORED_SCOPES)

    async def ask(question: str) -> str:
        """Ask the other agent."""
        return (await inner.reply(said(question))).get_text_content() or ""

    def script(body: dict[str, Any]) -> Any:
        asked = body.get("tools") and body["messages"][-1]["role"] != "tool"
        return tool_call("ask", {"question": "what?"}) if asked else "done"

    server.reply = script
    recording = Recording("nested", server.url)
    with recording.active():
        await solver(model, ask, name="outer", injection_config=IGNORED_SCOPES).reply(said())
    assert recording.agents() == ["outer", "inner", "outer"]
    (tool,) = recording.named("execute_tool")
    (nested,) = [span for span in recording.named("invoke_agent") if span.name.endswith("inner")]
    assert tool.attributes[semconv.AGENT_NAME] == "outer" and nested.parent_id == tool.span_id
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "done"
    assert_exact(recording, server.log)


@pytest.mark.parametrize(("name", "arguments"), [("subtract", '{"a": 1, "b": 2}'), ("add", '{"a": "x"}')])
@feature("tools")
async def test_calls_that_reach_no_tool_leave_an_error_span(
    server: ScriptedModelServer, model: Any, name: str, arguments: str
) -> None:
    replies = iter([tool_call(name, arguments), "sorry"])
    server.reply = lambda body: next(replies)
    recording = Recording("malformed", server.url)
    with recording.active():
        await solver(model, add).reply(said())
    (tool,) = recording.named("execute_tool")
    assert tool.status == "error" and tool.attributes[semconv.TOOL_NAME] == name
    assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == arguments
    assert tool.attributes[semconv.TOOL_CALL_RESULT] and tool.attributes[semconv.AGENT_NAME] == "solver"


@feature("tools")
async def test_parallel_tool_calls_keep_their_own_results(server: ScriptedModelServer, model: Any) -> None:
    calls = [tool_call("add", {"a": n, "b": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    replies = iter([{"role": "assistant", "content": None, "tool_calls": calls}, "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("parallel", server.url)
    with recording.active():
        await solver(model, add).reply(said())
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["a"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in recording.named("execute_tool")
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}


@feature("tools")
async def test_a_call_that_waits_for_consent_leaves_its_span_when_it_runs(
    server: ScriptedModelServer, model: Any
) -> None:
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "three"])
    server.reply = lambda body: next(replies)
    recording = Recording("consent", server.url)
    agent = solver(model, add, asked=True)
    with recording.active():
        events = [event async for event in agent.reply_stream(said())]
        (asked,) = [event for event in events if isinstance(event, RequireUserConfirmEvent)]
        assert recording.named("execute_tool") == []
        yes = [ConfirmResult(confirmed=True, tool_call=call) for call in asked.tool_calls]
        await agent.reply(UserConfirmResultEvent(reply_id=asked.reply_id, confirm_results=yes))
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "3" and tool.status != "error"
    assert recording.agents() == ["solver", "solver"]


# ------------------------------------------------------------------------------------ entry and streams
@pytest.mark.parametrize("instrument_first", [True, False])
async def test_a_marked_class_names_its_calls(
    server: ScriptedModelServer, model: Any, instrument_first: bool
) -> None:
    class Mine(Agent):
        pass

    if not instrument_first:
        AgentScopeInstrumentor().uninstrument()
    assert agl.agent(name="hero", methods=entry_methods(Mine))(Mine) is Mine
    mine = Mine("solver", "Solve.", model)
    if not instrument_first:
        AgentScopeInstrumentor().instrument()
    recording = Recording("marked", server.url)
    with recording.active():
        await mine.reply(said())
        async for _ in mine.reply_stream(said("again")):
            pass
    assert recording.agents() == ["hero", "hero"] and isinstance(mine, Agent)
    assert_exact(recording, server.log)


async def test_an_agent_made_before_is_known(server: ScriptedModelServer, model: Any) -> None:
    AgentScopeInstrumentor().uninstrument()
    agent = solver(model)
    AgentScopeInstrumentor().instrument()
    recording = Recording("before", server.url)
    with recording.active():
        await agent.reply(said())
    assert recording.agents() == ["solver"]


@feature("stream")
async def test_a_stream_that_is_given_up(server: ScriptedModelServer, model: Any) -> None:
    server.reply = lambda body: "a long answer " * 20
    recording = Recording("given-up", server.url)
    with recording.active():
        stream = solver(model).reply_stream(said())
        async for event in stream:
            if getattr(event, "delta", None):
                break
        await model.client.chat.completions.create(model="policy", messages=[])  # nobody's
        await stream.aclose()
    whole = [span for span in recording.calls if not span.attributes.get(PARTIAL)]
    assert [span.attributes.get(semconv.AGENT_NAME) for span in whole] == [None]


@feature("structured")
async def test_structured_output(server: ScriptedModelServer, model: Any) -> None:
    class Answer(BaseModel):
        """The answer."""

        number: int

    def script(body: dict[str, Any]) -> Any:
        finish = [tool["function"]["name"] for tool in body.get("tools") or ()]
        asked = finish and body["messages"][-1]["role"] != "tool"
        return tool_call(finish[0], {"number": 42}) if asked else "42"

    server.reply = script
    recording = Recording("structured", server.url)
    with recording.active():
        message = await solver(model).reply(said(), structured_schema=Answer)
    assert message.structured_output == {"number": 42}
    assert set(recording.agents()) == {"solver"}
    assert_exact(recording, server.log)


@feature("retries")
async def test_agentscopes_own_retries_are_calls_of_their_own(
    server: ScriptedModelServer, model: Any
) -> None:
    replies = iter([Reply(status=500, message="not now"), "fine"])
    server.reply = lambda body: next(replies)
    model.max_retries, model.retry_delay = 1, 0.0
    recording = Recording("retries", server.url)
    with recording.active():
        await solver(model).reply(said())
    assert [span.status for span in recording.calls] == ["error", "ok"]
    assert_exact(recording, server.log)


@feature("concurrency")
async def test_sixteen_share_a_model(server: ScriptedModelServer, model: Any) -> None:
    def script(body: dict[str, Any]) -> Any:
        return "done" if body["messages"][-1]["role"] == "tool" else tool_call("add", {"a": 1, "b": 2})

    server.reply = script
    recording = Recording("shared", server.url)
    with recording.active():
        agents = [solver(model, add, name=f"agent-{n}") for n in range(16)]
        await asyncio.gather(*(agent.reply(said()) for agent in agents))
    assert Counter(recording.agents()) == {f"agent-{n}": 2 for n in range(16)}
    assert len(recording.named("execute_tool")) == 16


async def test_an_agent_with_agentscopes_own_tracer(server: ScriptedModelServer, model: Any) -> None:
    recording = Recording("tracer", server.url)
    with recording.active():
        await solver(model, middlewares=[TracingMiddleware()]).reply(said())
    assert recording.agents() == ["solver"]
    assert len(recording.named("invoke_agent")) == 2  # ours, and the one that the user asked for
    assert_exact(recording, server.log)


async def test_agents_are_known_without_spans(
    server: ScriptedModelServer, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    recording = Recording("dark", server.url)
    with recording.active():
        await solver(model).reply(said())
    assert recording.agents() == ["solver"]
    assert [span.name for span in recording.spans] == [semconv.CALL_SPAN]


# --------------------------------------------------------------------------------------------- the rest
def test_entry_methods() -> None:
    assert entry_methods(Agent) == ("_reply",)
    assert entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("agentscope", "agentscope")
    assert spec.instrumentor() is AgentScopeInstrumentor()
    assert spec.entry_methods is not None and spec.entry_methods(Agent) == ("_reply",)
    assert list(AgentScopeInstrumentor().instrumentation_dependencies()) == [spec.requires]


def test_the_registry_is_empty_after_uninstrument() -> None:
    AgentScopeInstrumentor().uninstrument()
    AgentScopeInstrumentor().instrument()
