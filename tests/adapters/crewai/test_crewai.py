"""What is CrewAI's own: roles, tasks, delegation, tools that fail or stop, retries, summarised history."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("crewai")

from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from crewai import LLM, Agent, Crew, Process, Task
from crewai.events.event_bus import CrewAIEventsBus
from crewai.hooks import register_before_tool_call_hook, unregister_before_tool_call_hook
from crewai.hooks.dispatch import HookAborted
from crewai.tools import tool as crew_tool
from opentelemetry import trace
from pydantic import BaseModel

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.emit import emit_reward
from agl_crewai.entries import entry_methods
from agl_crewai.execution import SUMMARISED
from agl_crewai.instrumentor import CrewAIInstrumentor
from agl_crewai.plugin import agl_adapters
from agl_crewai.tools import UNPAIRED

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
CLOSE = {"Connection": "close"}
"""Summaries use the model's asynchronous client in a loop of their own: no connection may outlive it."""
TOO_LONG = "This model's maximum context length is 4096 tokens."


@crew_tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    CrewAIInstrumentor().instrument()
    yield
    CrewAIInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def llm(server: ScriptedModelServer) -> AsyncIterator[Any]:
    llm = LLM(
        "openai/policy", base_url=server.url, api_key="agl-context", max_retries=0, default_headers=CLOSE
    )
    yield llm
    llm._get_sync_client().close()
    await llm._get_async_client().close()


def made(llm: Any, role: str = "solver", **more: Any) -> Agent:
    return Agent(**{"role": role, "goal": "g", "backstory": "b", "llm": llm, "max_retry_limit": 0, **more})


def crew(*agents: Agent, **more: Any) -> Crew:
    tasks = [Task(description=f"for {agent.role}", expected_output="w", agent=agent) for agent in agents]
    return Crew(**{"agents": list(agents), "tasks": tasks, "cache": False, "memory": False, **more})


def told(body: dict[str, Any]) -> bool:
    """Whether a tool has answered."""
    return any(message["role"] == "tool" for message in body["messages"])


@feature("multi-agent")
async def test_a_tasks_name_is_the_node(server: ScriptedModelServer, llm: Any) -> None:
    recording = Recording("named", server.url)
    agent = made(llm, " {kind} solver ")
    task = Task(name="sum", description="d", expected_output="w", agent=agent)
    with recording.active():
        await Crew(agents=[agent], tasks=[task]).akickoff(inputs={"kind": "calm"})
    (call,) = recording.calls
    assert call.attributes["agl.tag.agent"] == "calm solver" and call.attributes["agl.tag.node"] == "sum"
    (invoked,) = recording.named("invoke_agent")
    assert invoked.name == "invoke_agent calm solver" and call.parent_id == invoked.span_id


@feature("multi-agent")
async def test_a_manager_delegates(server: ScriptedModelServer, llm: Any) -> None:
    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") and not told(body):
            given = {"task": "do it", "context": "none", "coworker": "worker"}
            return tool_call("delegate_work_to_coworker", given)
        return "done"

    server.reply = script
    recording = Recording("hierarchy", server.url)
    with recording.active():
        worker = made(llm, "worker")
        task = Task(description="d", expected_output="w")
        await Crew(
            agents=[worker], tasks=[task], process=Process.hierarchical, manager_llm=llm, cache=False
        ).kickoff_async()
    roles = [span.attributes["agl.tag.role"] for span in recording.calls]
    assert recording.agents() == ["Crew Manager", "worker", "Crew Manager"]
    assert roles == ["manager", "worker", "manager"]
    (tool,) = recording.named("execute_tool")
    inner = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "worker")
    assert inner.parent_id == tool.span_id and tool.attributes[semconv.AGENT_NAME] == "Crew Manager"
    assert_exact(recording, server.log)


@feature("tools")
async def test_parallel_tools_keep_their_own(server: ScriptedModelServer, llm: Any) -> None:
    calls = [tool_call("rate", {"n": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    server.reply = lambda body: "done" if told(body) else asked

    @crew_tool("rate")
    def rate(n: int) -> str:
        """Rate."""
        emit_reward(n, final=False)
        return str(2 * n)

    recording = Recording("parallel", server.url)
    with recording.active():
        await crew(made(llm, tools=[rate])).kickoff_async()
    tools = recording.named("execute_tool")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["n"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in tools
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}
    rewarded = recording.named(semconv.REWARD_SPAN)
    assert {span.parent_id for span in rewarded} == {span.span_id for span in tools}
    assert {span.attributes[semconv.AGENT_NAME] for span in rewarded} == {"solver"}
    (invoked,) = recording.named("invoke_agent")
    assert {span.parent_id for span in tools} == {invoked.span_id}


@pytest.mark.parametrize(
    ("name", "arguments"), [("add", "{not json"), ("subtract", '{"a": 1}'), ("add", '{"a": "x"}')]
)
@feature("tools")
async def test_calls_that_reach_no_tool_leave_an_error_span(
    server: ScriptedModelServer, llm: Any, name: str, arguments: str
) -> None:
    server.reply = lambda body: "sorry" if told(body) else tool_call(name, arguments)
    recording = Recording("malformed", server.url)
    with recording.active():
        await crew(made(llm, tools=[add])).kickoff_async()
    (tool,) = recording.named("execute_tool")
    assert tool.status == "error" and tool.attributes[semconv.TOOL_NAME] == name
    assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == arguments
    assert tool.attributes[semconv.TOOL_CALL_RESULT] and tool.attributes[semconv.TOOL_CALL_ID]
    assert tool.attributes[semconv.AGENT_NAME] == "solver"


@feature("tools")
async def test_a_tool_call_that_a_hook_refuses(server: ScriptedModelServer, llm: Any) -> None:
    def refuse(context: Any) -> None:
        raise HookAborted("not here")

    server.reply = lambda body: "done" if told(body) else tool_call("add", {"a": 1, "b": 2})
    recording = Recording("refused", server.url)
    register_before_tool_call_hook(refuse)
    try:
        with recording.active():
            await crew(made(llm, tools=[add])).kickoff_async()
    finally:
        unregister_before_tool_call_hook(refuse)
    (tool,) = recording.named("execute_tool")
    assert "blocked by hook" in tool.attributes[semconv.TOOL_CALL_RESULT]


@feature("tools")
def test_a_tool_call_that_is_broken_off_is_an_error() -> None:
    class Stop(BaseException):
        """Such as a process manager raises."""

    @crew_tool("stop")
    def stop() -> str:
        """Stop."""
        raise Stop

    with ScriptedModelServer(lambda body: tool_call("stop", {}), ids="always") as server:
        llm = LLM("openai/policy", base_url=server.url, api_key="agl-context")
        recording = Recording("stopped", server.url)
        with recording.active(), pytest.raises(Stop):
            crew(made(llm, tools=[stop])).kickoff()
        llm._get_sync_client().close()
    (tool,) = recording.named("execute_tool")
    assert (tool.status, tool.status_message) == ("error", "the tool call was broken off")
    assert not trace.get_current_span().get_span_context().is_valid and caller_tags() == {}


@feature("retries")
async def test_crewais_own_retries_are_executions(server: ScriptedModelServer, llm: Any) -> None:
    replies = iter([Reply(status=500, message="not now"), "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("again", server.url)
    with recording.active():
        await crew(made(llm, max_retry_limit=1)).kickoff_async()
    assert [span.status for span in recording.calls] == ["error", "ok"]
    assert len(recording.named("invoke_agent")) == 2 and recording.agents() == ["solver", "solver"]


@pytest.mark.parametrize("how", ["kickoff_async", "akickoff"])
async def test_summarised_history_is_said(
    server: ScriptedModelServer, llm: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[int] = []

    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") is None:
            return "<summary>short</summary>"
        if not told(body):
            return "done" if refused else tool_call("add", {"a": 1, "b": 2})
        refused.append(1)
        return Reply(status=400, message=TOO_LONG)

    server.reply = script
    recording = Recording("summary", server.url)
    with caplog.at_level(logging.WARNING, "agl_crewai"), recording.active():
        await getattr(crew(made(llm, tools=[add])), how)()
    assert COUNTS.snapshot() == {SUMMARISED: 1}
    said = [record.message for record in caplog.records if record.name.startswith("agl_crewai")]
    assert len(said) == 1 and "'solver'" in said[0]
    phases = [span.attributes.get("agl.tag.phase") for span in recording.calls]
    assert phases == [None, None, "summary", None] and set(recording.agents()) == {"solver"}
    (step,) = recording.named(semconv.OPERATION_SPAN)
    assert recording.calls[2].parent_id == step.span_id
    assert_exact(recording, server.log)


async def test_history_summarised_outside_an_attempt_is_not_counted(
    server: ScriptedModelServer, llm: Any
) -> None:
    server.reply = lambda body: "<summary>short</summary>"
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    await asyncio.to_thread(llm.summarize_messages, said, [])
    assert SUMMARISED not in COUNTS.snapshot()


@feature("concurrency")
async def test_tasks_in_threads_of_their_own(server: ScriptedModelServer, llm: Any) -> None:
    recording = Recording("threads", server.url)
    agents = [made(llm, role) for role in ("one", "two", "three")]
    with recording.active():
        tasks = [
            Task(
                description=agent.role,
                expected_output="w",
                agent=agent,
                async_execution=agent.role != "three",
            )
            for agent in agents
        ]
        await Crew(agents=agents, tasks=tasks).kickoff_async()
    assert sorted(str(agent) for agent in recording.agents()) == ["one", "three", "two"]
    for call in recording.calls:
        exchange = next(x for x in server.log if x.response_id == call.attributes[semconv.RESPONSE_ID])
        assert f"You are {call.attributes['agl.tag.agent']}." in str(exchange.body["messages"][0])


async def test_a_time_limit_runs_in_a_thread_and_keeps_the_agent(
    server: ScriptedModelServer, llm: Any
) -> None:
    server.reply = lambda body: "done" if told(body) else tool_call("add", {"a": 1, "b": 2})
    recording = Recording("limited", server.url)
    with recording.active():
        await crew(made(llm, tools=[add], max_execution_time=30)).kickoff_async()
    assert recording.agents() == ["solver", "solver"]
    assert len(recording.named("execute_tool")) == 1 and COUNTS.snapshot() == {}


@feature("stream")
async def test_a_crew_that_streams(server: ScriptedModelServer, llm: Any) -> None:
    recording = Recording("streamed", server.url)
    with recording.active():
        output = await crew(made(llm, "a"), made(llm, "b"), stream=True).kickoff_async()
        async for _ in output:
            pass
    assert recording.agents() == ["a", "b"]
    assert all(exchange.body["stream"] for exchange in server.log)
    assert_exact(recording, server.log)


@feature("structured")
async def test_structured_output(server: ScriptedModelServer, llm: Any) -> None:
    class Sum(BaseModel):
        total: int

    server.reply = lambda body: '{"total": 42}'
    recording = Recording("typed", server.url)
    agent = made(llm)
    with recording.active():
        task = Task(description="d", expected_output="w", agent=agent, output_pydantic=Sum)
        result = await Crew(agents=[agent], tasks=[task]).akickoff()
    assert result.pydantic == Sum(total=42)
    assert_exact(recording, server.log)


def test_after_a_crew_calls_are_nobodys() -> None:
    with ScriptedModelServer(ids="always") as server:
        llm = LLM("openai/policy", base_url=server.url, api_key="agl-context")
        recording = Recording("after", server.url)
        with recording.active():
            crew(made(llm)).kickoff()
            llm.call("alone")
        llm._get_sync_client().close()
    assert recording.agents() == ["solver", None]


async def test_agents_are_known_without_opentelemetry(
    server: ScriptedModelServer, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    recording = Recording("dark", server.url)
    with recording.active():
        await crew(made(llm, "a"), made(llm, "b")).kickoff_async()
    assert recording.agents() == ["a", "b"]
    assert [span.name for span in recording.spans] == [semconv.CALL_SPAN] * 2


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
async def test_a_marked_agent_class(server: ScriptedModelServer, llm: Any, early: bool) -> None:
    if early:
        CrewAIInstrumentor().uninstrument()

    @agl.agent(name="mine", methods=entry_methods(Agent))
    class Mine(Agent):
        pass

    if early:
        CrewAIInstrumentor().instrument()
    recording = Recording("marked", server.url)
    with recording.active():
        agent = Mine(role="solver", goal="g", backstory="b", llm=llm)
        await crew(agent).kickoff_async()
        await crew(agent).akickoff()
        await agent.kickoff_async("go")
        await asyncio.to_thread(agent.kickoff, "go")
    assert isinstance(agent, Agent) and recording.agents() == ["mine"] * 4
    assert len(recording.named("invoke_agent solver")) == 4


def test_an_event_out_of_its_order_is_counted() -> None:
    from crewai.events.types.tool_usage_events import ToolUsageErrorEvent

    CrewAIEventsBus().emit(None, ToolUsageErrorEvent(tool_name="t", tool_args={}, error="no"))
    assert COUNTS.snapshot()[UNPAIRED] == 1


def test_entry_methods() -> None:
    class Mine(Agent):
        pass

    assert entry_methods(Mine) == ("execute_task", "aexecute_task", "kickoff", "kickoff_async")
    assert entry_methods(Crew) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("crewai", "crewai")
    assert spec.instrumentor() is CrewAIInstrumentor()
    assert caller_tags() == {}
    assert spec.entry_methods is not None and spec.entry_methods(Agent) == entry_methods(Agent)
    assert list(CrewAIInstrumentor().instrumentation_dependencies()) == [spec.requires]


def test_the_registry_is_empty_after_uninstrument() -> None:
    CrewAIInstrumentor().uninstrument()
    CrewAIInstrumentor().instrument()
