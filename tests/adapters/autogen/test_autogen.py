"""What is AutoGen's own: teams and their managers, tools that are not reached, reflection, runtime spans."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.delivery import IGNORED_SCOPES
from agl_autogen.entries import entry_methods
from agl_autogen.instrumentor import PLUMBING, AutoGenInstrumentor
from agl_autogen.plugin import agl_adapters

HEADER = semconv.HEADER_SELECTED
INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    AutoGenInstrumentor().instrument()
    yield
    AutoGenInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def client(server: ScriptedModelServer) -> AsyncIterator[Any]:
    client = OpenAIChatCompletionClient(
        model="policy", base_url=server.url, api_key="agl-context", model_info=INFO
    )
    yield client
    await client.close()


def tags(recording: Recording) -> list[tuple[Any, ...]]:
    keys = [semconv.TAG_PREFIX + key for key in ("agent", "role", "team")]
    return [tuple(span.attributes.get(key) for key in keys) for span in recording.calls]


@feature("multi-agent")
async def test_a_selectors_own_calls_are_the_managers(server: ScriptedModelServer, client: Any) -> None:
    server.reply = lambda body: "critic" if "Pick" in str(body["messages"][0]) else "words"
    recording = Recording("selector", server.url)
    with recording.active():
        agents = [AssistantAgent(name, client, description=name) for name in ("writer", "critic", "reader")]
        team = SelectorGroupChat(
            agents,
            client,
            name="salon",
            termination_condition=MaxMessageTermination(2),
            selector_prompt="Pick one of {participants}. {roles} {history}",
        )
        await team.run(task="begin")
    manager = "SelectorGroupChatManager", "manager", "salon"
    assert tags(recording) == [manager, ("critic", "critic", "salon")]
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_an_agent_called_like_a_manager_is_no_manager(server: ScriptedModelServer, client: Any) -> None:
    recording = Recording("boss", server.url)
    with recording.active():
        boss = AssistantAgent("SalesGroupChatManager", client)
        await RoundRobinGroupChat([boss], termination_condition=MaxMessageTermination(2)).run(task="sell")
    assert tags(recording) == [("SalesGroupChatManager", "SalesGroupChatManager", "RoundRobinGroupChat")]


async def test_a_team_made_before_is_known_by_its_managers_name(
    server: ScriptedModelServer, client: Any
) -> None:
    AutoGenInstrumentor().uninstrument()
    server.reply = lambda body: "critic" if "Pick" in str(body["messages"][0]) else "words"
    agents = [AssistantAgent(name, client, description=name) for name in ("writer", "critic", "reader")]
    stop = MaxMessageTermination(2)
    team = SelectorGroupChat(
        agents, client, termination_condition=stop, selector_prompt="Pick {participants}"
    )
    AutoGenInstrumentor().instrument()
    recording = Recording("early", server.url)
    with recording.active():
        await team.run(task="begin")
    assert tags(recording) == [("SelectorGroupChatManager", "manager", None), ("critic", "critic", None)]


@feature("multi-agent")
async def test_an_agent_as_a_tool_speaks_for_itself(server: ScriptedModelServer, client: Any) -> None:
    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return tool_call("inner", {"task": "help"})
        return "done"

    server.reply = script
    recording = Recording("nested", server.url)
    with recording.active():
        inner = AssistantAgent("inner", client, description="helps")
        outer = AssistantAgent("outer", client, tools=[AgentTool(inner)], max_tool_iterations=2)
        await outer.run(task="go")
    assert recording.agents() == ["outer", "inner", "outer"]
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.AGENT_NAME] == "outer"
    assert "done" in tool.attributes[semconv.TOOL_CALL_RESULT]
    assert_exact(recording, server.log)


@pytest.mark.parametrize("how", ["run", "stream", "team"])
async def test_a_mark_names_its_own_agent_and_not_the_one_it_calls_as_a_tool(
    server: ScriptedModelServer, client: Any, how: str
) -> None:
    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return tool_call("inner", {"task": "help"})
        return "done"

    @agl.agent(name="hero", methods=entry_methods(AssistantAgent), select="hero", reward=lambda result: 0.5)
    class Mine(AssistantAgent):
        pass

    server.reply = script
    recording = Recording("marked", server.url)
    with recording.active():
        inner = AssistantAgent("inner", client, description="helps")
        outer = Mine("outer", client, tools=[AgentTool(inner)], max_tool_iterations=2)
        if how == "run":
            await outer.run(task="go")
        elif how == "stream":
            _ = [item async for item in outer.run_stream(task="go")]
        else:
            await RoundRobinGroupChat([outer], termination_condition=MaxMessageTermination(2)).run(task="go")
    assert recording.agents() == ["hero", "inner", "hero"]
    assert [HEADER in exchange.headers for exchange in server.log] == [False, True, False]
    rewards = [span.attributes for span in recording.named(semconv.REWARD_SPAN)]
    own = [a[semconv.REWARD_SPAN_ID] for a in rewards if semconv.REWARD_SPAN_ID in a]
    assert own == [recording.calls[0].span_id, recording.calls[2].span_id]
    assert [a[semconv.REWARD_AGENT] for a in rewards if semconv.REWARD_AGENT in a] == ["hero"]
    assert_exact(recording, server.log)


async def test_a_marked_class_around_a_team_leaves_its_agents_their_names(
    server: ScriptedModelServer, client: Any
) -> None:
    @agl.agent(name="office", select=True)
    class Office:
        async def run(self, task: str) -> None:
            agents = [AssistantAgent(name, client) for name in ("a", "b")]
            await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)).run(task=task)

    recording = Recording("office", server.url)
    with recording.active():
        await Office().run("go")
    assert recording.agents() == ["a", "b"]
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_a_swarm_hands_over(server: ScriptedModelServer, client: Any) -> None:
    def script(body: dict[str, Any]) -> Any:
        first = body.get("tools") and "bob" in str(body["tools"]) and body["messages"][-1]["role"] != "tool"
        return tool_call("transfer_to_bob", {}) if first else "thanks"

    server.reply = script
    recording = Recording("swarm", server.url)
    with recording.active():
        alice = AssistantAgent("alice", client, handoffs=[Handoff(target="bob")])
        bob = AssistantAgent("bob", client)
        await Swarm([alice, bob], termination_condition=MaxMessageTermination(3)).run(task="go")
    assert recording.agents() == ["alice", "bob"]
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.TOOL_NAME] == "transfer_to_bob"
    assert_exact(recording, server.log)


@pytest.mark.parametrize(
    ("name", "arguments"), [("add", "{not json"), ("subtract", '{"a": 1, "b": 2}'), ("add", '{"a": "x"}')]
)
@feature("tools")
async def test_calls_that_reach_no_tool_leave_an_error_span(
    server: ScriptedModelServer, client: Any, name: str, arguments: str
) -> None:
    replies = iter([tool_call(name, arguments), "sorry"])
    server.reply = lambda body: next(replies)
    recording = Recording("malformed", server.url)
    with recording.active():
        await AssistantAgent("solver", client, tools=[add], max_tool_iterations=2).run(task="go")
    (tool,) = recording.named("execute_tool")
    assert tool.status == "error" and tool.attributes[semconv.TOOL_NAME] == name
    assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == arguments
    assert tool.attributes[semconv.TOOL_CALL_RESULT] and tool.attributes[semconv.AGENT_NAME] == "solver"
    assert tool.parent_id == recording.calls[0].parent_id


@feature("tools")
async def test_parallel_tool_calls_keep_their_own_results(server: ScriptedModelServer, client: Any) -> None:
    calls = [tool_call("add", {"a": n, "b": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    replies = iter([{"role": "assistant", "content": None, "tool_calls": calls}, "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("parallel", server.url)
    with recording.active():
        await AssistantAgent("solver", client, tools=[add], max_tool_iterations=2).run(task="go")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["a"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in recording.named("execute_tool")
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}


@feature("tools")
async def test_reflection_drops_the_tools_and_is_exact_all_the_same(
    server: ScriptedModelServer, client: Any
) -> None:
    def script(body: dict[str, Any]) -> Any:
        return tool_call("add", {"a": 1, "b": 2}) if body.get("tools") else "three"

    server.reply = script
    recording = Recording("reflect", server.url)
    with recording.active():
        await AssistantAgent("solver", client, tools=[add], reflect_on_tool_use=True).run(task="go")
    first, second = server.log
    assert "tools" in first.body and "tools" not in second.body
    assert second.prompt_ids[: len(first.prompt_ids)] != first.prompt_ids  # its row begins anew
    assert_exact(recording, server.log)


async def test_tools_outside_an_attempt_run_as_ever(server: ScriptedModelServer, client: Any) -> None:
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "done"])
    server.reply = lambda body: next(replies)
    result = await AssistantAgent("solver", client, tools=[add], max_tool_iterations=2).run(task="go")
    assert result.messages[-1].to_text() == "done"
    assert set(COUNTS.snapshot()) == {"span-outside-attempt"}


async def test_the_runtimes_spans_are_not_made(server: ScriptedModelServer, client: Any) -> None:
    recording = Recording("quiet", server.url)
    made: list[str] = []
    provider: Any = trace.get_tracer_provider()

    class Watch(SimpleSpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            made.append(span.instrumentation_scope.name)

    provider.add_span_processor(Watch(InMemorySpanExporter()))
    with recording.active():
        agents = [AssistantAgent(name, client) for name in ("a", "b")]
        await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)).run(task="go")
    assert made and not set(made) & set(PLUMBING)
    assert {span.name.split()[0] for span in recording.spans} == {
        "create_agent",
        "invoke_agent",
        semconv.CALL_SPAN,
    }


async def test_a_users_own_provider_keeps_the_runtimes_spans(
    server: ScriptedModelServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoGenInstrumentor().uninstrument()
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    AutoGenInstrumentor().instrument()
    recording = Recording("users", server.url)
    with recording.active():
        agents = [AssistantAgent(name, client) for name in ("a", "b")]
        await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)).run(task="go")
    scopes = {span.instrumentation_scope.name for span in exporter.get_finished_spans()}
    assert PLUMBING[0] in scopes
    assert not [span for span in recording.spans if span.name.startswith("autogen ")]
    assert recording.agents() == ["a", "b"]
    AutoGenInstrumentor().uninstrument()
    monkeypatch.undo()
    AutoGenInstrumentor().instrument()


async def test_in_a_team_agents_are_known_without_spans(
    server: ScriptedModelServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    recording = Recording("dark", server.url)
    with recording.active():
        agents = [AssistantAgent(name, client) for name in ("a", "b")]
        await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)).run(task="go")
    assert recording.agents() == ["a", "b"]
    assert [span.name for span in recording.spans] == [semconv.CALL_SPAN] * 2


def test_entry_methods() -> None:
    class Mine(AssistantAgent):
        pass

    methods = ("on_messages", "on_messages_stream")
    assert entry_methods(Mine) == entry_methods(BaseChatAgent) == methods
    assert entry_methods(dict) == ()


def test_the_plugin() -> None:
    spec, _ = agl_adapters()
    assert (spec.name, spec.framework) == ("autogen", "autogen_agentchat")
    assert spec.instrumentor() is AutoGenInstrumentor()
    assert spec.entry_methods is not None and len(spec.entry_methods(AssistantAgent)) == 2
    assert list(AutoGenInstrumentor().instrumentation_dependencies()) == [spec.requires]


def test_the_registries_are_empty_after_uninstrument() -> None:
    AutoGenInstrumentor().uninstrument()
    assert set() == IGNORED_SCOPES
    AutoGenInstrumentor().instrument()
