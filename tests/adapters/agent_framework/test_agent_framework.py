"""What is Agent Framework's own: workflows, managers, handoffs, streams read elsewhere, telemetry off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Never

import pytest

pytest.importorskip("agent_framework_openai", reason="Agent Framework is not installed")

from agent_framework import (
    Agent,
    BaseAgent,
    RawAgent,
    WorkflowBuilder,
    WorkflowContext,
    agent_middleware,
    executor,
    observability,
)
from agent_framework.exceptions import ChatClientException
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.through_gateway import assert_one_row, leased_attempt
from openai import AsyncOpenAI
from opentelemetry import trace
from pydantic import BaseModel

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.context import tagged
from agl_agent_framework.entries import entry_methods
from agl_agent_framework.instrumentor import AgentFrameworkInstrumentor
from agl_agent_framework.plugin import agl_adapters


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    AgentFrameworkInstrumentor().instrument(raise_exception_on_conflict=True)
    yield
    AgentFrameworkInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def client(server: ScriptedModelServer) -> AsyncIterator[Any]:
    client = AsyncOpenAI(base_url=server.url, api_key="agl-context", max_retries=0)
    yield OpenAIChatCompletionClient("policy", async_client=client)
    await client.close()


def tags(recording: Recording, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(span.attributes.get(semconv.TAG_PREFIX + key) for key in keys) for span in recording.calls]


@feature("multi-agent")
async def test_a_workflows_nodes_are_named(server: ScriptedModelServer, client: Any) -> None:
    @executor(id="judge")
    async def judge(answer: Any, context: WorkflowContext[Never, str]) -> None:
        completion = await client.client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "good?"}]
        )
        await context.yield_output(completion.choices[0].message.content or "")

    recording = Recording("nodes", server.url)
    with recording.active():
        writer = Agent(client, "Write.", name="writer")
        await WorkflowBuilder(start_executor=writer).add_edge(writer, judge).build().run("a poem")
    assert tags(recording, "agent", "role", "node") == [("writer", "writer", "writer"), (None, None, "judge")]
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_a_group_chats_own_calls_are_the_managers(server: ScriptedModelServer, client: Any) -> None:
    orchestrations = pytest.importorskip("agent_framework_orchestrations")

    def script(body: dict[str, Any]) -> Any:
        if "response_format" not in body:
            return "words"
        spoke = any("words" in str(message["content"]) for message in body["messages"])
        choice = {"terminate": spoke, "reason": "because", "next_speaker": "critic", "final_message": "done"}
        return json.dumps(choice)

    server.reply = script
    recording = Recording("chat", server.url)
    with recording.active():
        people = [Agent(client, "Speak.", name=name, description=name) for name in ("writer", "critic")]
        chair = Agent(client, "Choose who speaks.", name="chair")
        chat = orchestrations.GroupChatBuilder(participants=people, orchestrator_agent=chair).build()
        await chat.run("begin")
    assert tags(recording, "agent", "role") == [
        ("chair", "manager"),
        ("critic", "critic"),
        ("chair", "manager"),
    ]
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_a_handoff_is_a_tool_call(server: ScriptedModelServer, client: Any) -> None:
    orchestrations = pytest.importorskip("agent_framework_orchestrations")
    server.reply = lambda body: (
        tool_call("handoff_to_bob", {}) if "alice" in str(body["messages"][0]) else "hi"
    )
    recording = Recording("handoff", server.url)
    with recording.active():
        alice, bob = (
            Agent(
                client,
                f"You are {name}.",
                id=name,
                name=name,
                require_per_service_call_history_persistence=True,
            )
            for name in ("alice", "bob")
        )
        builder = orchestrations.HandoffBuilder(participants=[alice, bob]).with_start_agent(alice)
        await builder.add_handoff(alice, [bob]).build().run("go")
    assert recording.agents() == ["alice", "bob"]
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.TOOL_NAME] == "handoff_to_bob"
    assert tool.attributes[semconv.AGENT_NAME] == "alice" and semconv.TOOL_CALL_RESULT in tool.attributes
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_an_agent_as_a_tool_speaks_for_itself(server: ScriptedModelServer, client: Any) -> None:
    def script(body: dict[str, Any]) -> Any:
        asked = body.get("tools") and body["messages"][-1]["role"] != "tool"
        return tool_call("inner", {"task": "help"}) if asked else "done"

    server.reply = script
    recording = Recording("nested", server.url)
    with recording.active():
        inner = Agent(client, "Help.", name="inner", description="helps")
        await Agent(client, "Ask.", name="outer", tools=[inner.as_tool()]).run("go")
    assert recording.agents() == ["outer", "inner", "outer"]
    (tool,) = recording.named("execute_tool")
    assert tool.attributes[semconv.AGENT_NAME] == "outer"
    assert "done" in tool.attributes[semconv.TOOL_CALL_RESULT]
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
        await Agent(client, "Solve.", name="solver", tools=[add]).run("go")
    (tool,) = recording.named("execute_tool")
    assert tool.status == "error" and tool.attributes[semconv.TOOL_NAME] == name
    assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == arguments
    assert tool.attributes[semconv.TOOL_CALL_RESULT] and tool.attributes[semconv.AGENT_NAME] == "solver"


@pytest.mark.parametrize("stream", [False, True])
@feature("tools")
async def test_parallel_tool_calls_keep_their_own_results(
    server: ScriptedModelServer, client: Any, stream: bool
) -> None:
    calls = [tool_call("add", {"a": n, "b": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    replies = iter([{"role": "assistant", "content": None, "tool_calls": calls}, "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("parallel", server.url)
    with recording.active():
        agent = Agent(client, "Solve.", name="solver", tools=[add])
        if stream:
            await agent.run("go", stream=True).get_final_response()
        else:
            await agent.run("go")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["a"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in recording.named("execute_tool")
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}
    assert_exact(recording, server.log)


@pytest.mark.parametrize("stream", [False, True])
async def test_agents_and_tools_are_known_without_telemetry(
    server: ScriptedModelServer, client: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability.OBSERVABILITY_SETTINGS, "_enable_instrumentation", False)
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "three"])
    server.reply = lambda body: next(replies)
    recording = Recording("dark", server.url)
    with recording.active():
        agent = Agent(client, "Solve.", name="solver", tools=[add])
        if stream:
            await agent.run("go", stream=True).get_final_response()
        else:
            await agent.run("go")
    assert recording.agents() == ["solver", "solver"]
    (tool,) = recording.named("execute_tool")
    assert (tool.attributes[semconv.TOOL_CALL_RESULT], tool.attributes[semconv.AGENT_NAME]) == ("3", "solver")
    assert {span.name.split()[0] for span in recording.spans} == {semconv.CALL_SPAN, "execute_tool"}


async def test_the_users_telemetry_settings_stay(server: ScriptedModelServer, client: Any) -> None:
    recording = Recording("settings", server.url)
    with recording.active():
        await Agent(client, "Speak.", name="solver").run("go")
    assert not observability.OBSERVABILITY_SETTINGS.SENSITIVE_DATA_ENABLED
    assert not [span for span in recording.spans if semconv.INPUT_MESSAGES in span.attributes]


@pytest.mark.parametrize("base", [Agent, RawAgent])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("middleware", [False, True])
async def test_a_marked_class_names_its_calls(
    server: ScriptedModelServer, client: Any, base: Any, stream: bool, middleware: bool
) -> None:
    class Mine(base):  # type: ignore[misc, valid-type]
        pass

    @agent_middleware
    async def pass_on(context: Any, call_next: Any) -> None:
        await call_next()

    assert agl.agent(name="hero", methods=entry_methods(Mine))(Mine) is Mine
    extra = {"middleware": [pass_on]} if middleware and base is Agent else {}
    recording = Recording("marked", server.url)
    with recording.active():
        agent = Mine(client, "Speak.", name="solver", **extra)
        if stream:
            await agent.run("go", stream=True).get_final_response()
        else:
            await agent.run("go")
    assert recording.agents() == ["hero"] and isinstance(agent, base)
    assert_exact(recording, server.log)


async def test_a_marked_agent_of_ones_own_names_its_calls(server: ScriptedModelServer, client: Any) -> None:
    @agl.agent(name="hero", methods=entry_methods(BaseAgent))
    class Mine(BaseAgent):
        def run(self, messages: Any = None, **kwargs: Any) -> Any:
            return self._run()

        async def _run(self) -> None:
            await client.client.chat.completions.create(model="policy", messages=[])

    recording = Recording("own", server.url)
    with recording.active():
        await Mine(name="solver").run("go")
    assert recording.agents() == ["hero"]
    assert_exact(recording, server.log)


async def test_a_stream_may_be_read_in_another_task(server: ScriptedModelServer, client: Any) -> None:
    async def read(stream: Any) -> list[Any]:
        with tagged(reader="other"):
            return [update async for update in stream]

    recording = Recording("elsewhere", server.url)
    with recording.active():
        with tagged(phase="night"):
            stream = Agent(client, "Speak.", name="solver").run("go", stream=True)
        await asyncio.create_task(read(stream))
        await client.client.chat.completions.create(model="policy", messages=[])
    assert tags(recording, "agent", "phase", "reader") == [("solver", "night", "other"), (None, None, None)]
    assert_exact(recording, server.log)


@pytest.mark.parametrize("stream", [False, True])
@feature("structured")
async def test_structured_output(server: ScriptedModelServer, client: Any, stream: bool) -> None:
    class Answer(BaseModel):
        number: int

    server.reply = lambda body: '{"number": 42}'
    recording = Recording("structured", server.url)
    options: Any = {"response_format": Answer}
    with recording.active():
        agent = Agent(client, "Solve.", name="solver")
        if stream:
            answer = await agent.run("go", stream=True, options=options).get_final_response()
        else:
            answer = await agent.run("go", options=options)
    assert answer.value == Answer(number=42) and "response_format" in server.log[0].body
    assert_exact(recording, server.log)


@feature("concurrency")
async def test_identical_prompts_at_once_are_calls_of_their_own(
    server: ScriptedModelServer, client: Any
) -> None:
    numbers = iter(range(8))
    server.reply = lambda body: f"answer {next(numbers)}"
    recording = Recording("same", server.url)
    with recording.active():
        agent = Agent(client, "Speak.", name="solver")
        await asyncio.gather(*(agent.run("go") for _ in range(8)))
    assert recording.agents() == ["solver"] * 8
    answered = {span.attributes[semconv.RESPONSE_ID]: span for span in recording.calls}
    assert len(answered) == 8
    for exchange in server.log:
        span = answered[exchange.response_id]
        assert span.attributes[semconv.RESPONSE_COUNT] == len(exchange.answers[0].ids)


async def test_a_cancelled_call_is_an_error_span(server: ScriptedModelServer, client: Any) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(body: dict[str, Any]) -> str:
        asked.set()
        await never.wait()
        return "late"

    server.reply = hang
    recording = Recording("cancelled", server.url)
    with recording.active():
        task = asyncio.create_task(_run(Agent(client, "Speak.", name="solver")))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    never.set()
    (call,) = recording.calls
    assert call.status == "error" and call.attributes[semconv.EXCEPTION_TYPE] == "CancelledError"
    assert recording.agents() == ["solver"]


async def _run(agent: Any) -> Any:
    return await agent.run("go")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_raises(
    server: ScriptedModelServer, client: Any, stream: bool
) -> None:
    server.reply = lambda body: Reply(status=400, message="too long")
    recording = Recording("long", server.url)
    with recording.active(), pytest.raises(ChatClientException, match="too long"):
        agent = Agent(client, "Speak.", name="solver")
        if stream:
            await agent.run("go", stream=True).get_final_response()
        else:
            await agent.run("go")
    (call,) = recording.calls
    assert call.status == "error" and len(server.log) == 1


async def test_outside_an_attempt_agents_run_as_ever(server: ScriptedModelServer, client: Any) -> None:
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "done", "done"])
    server.reply = lambda body: next(replies)
    agent = Agent(client, "Solve.", name="solver", tools=[add])
    assert (await agent.run("go")).text == "done"
    stream = agent.run("go", stream=True)
    assert (await stream.get_final_response()).text == "done"
    assert set(COUNTS.snapshot()) == {"span-outside-attempt"}


async def test_a_provider_that_makes_no_spans(
    server: ScriptedModelServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    recording = Recording("noop", server.url)
    with recording.active():
        await Agent(client, "Speak.", name="solver").run("go")
    assert recording.agents() == ["solver"]


def test_entry_methods() -> None:
    assert entry_methods(Agent) == entry_methods(BaseAgent) == ("run",)
    assert entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("agent-framework", "agent_framework")
    assert spec.instrumentor() is AgentFrameworkInstrumentor()
    assert spec.entry_methods is not None and spec.entry_methods(Agent) == ("run",)
    assert list(AgentFrameworkInstrumentor().instrumentation_dependencies()) == [spec.requires]


def test_the_registries_are_empty_after_uninstrument() -> None:
    AgentFrameworkInstrumentor().uninstrument()
    AgentFrameworkInstrumentor().instrument()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["session", "conversation", "unstored"])
async def test_what_the_server_remembers_is_exact_and_one_row(how: str, stream: bool, tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> Any:
        call = tool_call("add", '{"a":  1, "b": 1}', f"c{len(engine.log)}")
        return call if body["messages"][-1]["role"] == "user" else "it is 2"

    async with ScriptedModelServer(reply) as engine, leased_attempt(engine, tmp_path) as leased:
        with leased.active():
            url, key = leased.context.gateway, leased.context.key
            async with AsyncOpenAI(base_url=url, api_key=key) as client:
                options: Any = {"store": False} if how == "unstored" else None
                responses = OpenAIChatClient(model="policy", async_client=client)
                agent = responses.as_agent(name="solver", tools=[add], default_options=options)
                session = agent.create_session()
                if how == "conversation":
                    session = agent.get_session((await client.conversations.create()).id)
                for text in ("one", "two"):
                    if stream:
                        async for _ in agent.run(text, session=session, stream=True):
                            pass
                    else:
                        await agent.run(text, session=session)
        record, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 4
    assert_one_row(record, engine.log)
    later = [call.edited.get("continues", "")[:5] for call in record.calls[1:]]
    assert later == [{"session": "resp_", "conversation": "conv_", "unstored": ""}[how]] * 3
