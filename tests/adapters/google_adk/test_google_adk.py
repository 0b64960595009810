"""What is Google ADK's own: transfers, agents as tools, workflows' nodes, callbacks, its own tracing."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("google.adk")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.script import say
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.telemetry import tracing
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from openai import AsyncOpenAI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.delivery import IGNORED_SCOPES
from agentlightning.capture.emit import emit_reward
from agentlightning.keys import CONTEXT_KEY
from agl_google_adk.entries import entry_methods
from agl_google_adk.instrumentor import SCOPE, GoogleADKInstrumentor
from agl_google_adk.plugin import agl_adapters
from agl_google_adk.turns import node_class

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, of pydantic
WORKFLOWS = pytest.mark.skipif(node_class() is None, reason="Google ADK 1 has no workflows")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    GoogleADKInstrumentor().instrument()
    yield
    GoogleADKInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(say, ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[LiteLlm]:
    client = AsyncOpenAI(base_url=server.url, api_key=CONTEXT_KEY, max_retries=0)
    yield LiteLlm("openai/policy", client=client)
    await client.close()


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("google-adk", server.url)


def made(model: Any, name: str = "solver", **more: Any) -> LlmAgent:
    return LlmAgent(name=name, model=model, instruction=f"You are {name}.", **more)


async def run(agent: Any, task: str = "how much?") -> list[Any]:
    return await InMemoryRunner(agent, app_name="app").run_debug(task, quiet=True)


def told(body: dict[str, Any]) -> bool:
    """Whether a tool has answered."""
    return any(message["role"] == "tool" for message in body["messages"])


def tool_of(recording: Recording) -> Any:
    (tool,) = recording.named("execute_tool")
    return tool


# ------------------------------------------------------------------------------------------------ many agents
@feature("multi-agent")
async def test_a_transfer(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    def script(body: dict[str, Any]) -> Any:
        if "You are alice." in body["messages"][0]["content"]:
            return tool_call("transfer_to_agent", {"agent_name": "bob"})
        return "thanks"

    server.reply = script
    with recording.active():
        await run(made(model, "alice", sub_agents=[made(model, "bob", description="Knows.")]))
    assert recording.agents() == ["alice", "bob"]
    tool = tool_of(recording)
    assert tool.attributes[semconv.TOOL_NAME] == "transfer_to_agent"
    assert tool.attributes[semconv.AGENT_NAME] == "alice"
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_an_agent_as_a_tool(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    def script(body: dict[str, Any]) -> Any:
        outer = "You are outer." in body["messages"][0]["content"]
        return tool_call("inner", {"request": "help"}) if outer and not told(body) else "done"

    server.reply = script
    with recording.active():
        await run(made(model, "outer", tools=[AgentTool(made(model, "inner"))]))
    assert recording.agents() == ["outer", "inner", "outer"]
    tool = tool_of(recording)
    inner = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "inner")
    assert inner.parent_id == tool.span_id and tool.attributes[semconv.TOOL_CALL_RESULT]
    assert_exact(recording, server.log)


@feature("multi-agent", "concurrency")
async def test_parallel_agents(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    with recording.active():
        await run(ParallelAgent(name="both", sub_agents=[made(model, "one"), made(model, "two")]))
    assert sorted(str(agent) for agent in recording.agents()) == ["one", "two"]
    for call in recording.calls:
        exchange = next(x for x in server.log if x.response_id == call.attributes[semconv.RESPONSE_ID])
        assert f"You are {call.attributes['agl.tag.agent']}." in exchange.body["messages"][0]["content"]
    both = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "both")
    assert {s.parent_id for s in recording.named("invoke_agent") if s is not both} == {both.span_id}


@WORKFLOWS
@feature("multi-agent")
async def test_a_workflows_steps_are_nodes(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    from google.adk.workflow import START, Workflow

    tags: list[Any] = []

    def count(node_input: Any) -> str:
        """Count."""
        tags.append(caller_tags())
        return "3"

    writer = made(model, "writer")
    with recording.active():
        await run(Workflow(name="flow", edges=[(START, count, writer)]), "a poem")
    assert [one.get("node") for one in tags] == ["count"]
    (call,) = recording.calls
    assert (call.attributes["agl.tag.agent"], call.attributes["agl.tag.node"]) == ("writer", "writer")
    assert_exact(recording, server.log)


async def test_a_lone_agent_is_no_node(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    with recording.active():
        await run(made(model))
    assert "agl.tag.node" not in recording.calls[0].attributes


# ------------------------------------------------------------------------------------------------------ tools
@feature("tools")
async def test_parallel_tools_keep_their_own(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    calls = [tool_call("rate", {"n": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    server.reply = lambda body: "done" if told(body) else asked

    def rate(n: int) -> str:
        """Rate."""
        emit_reward(n, final=False)
        return str(2 * n)

    with recording.active():
        await run(made(model, tools=[rate]))
    tools = recording.named("execute_tool")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["n"],
            json.loads(span.attributes[semconv.TOOL_CALL_RESULT])["result"],
        )
        for span in tools
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}
    rewarded = recording.named(semconv.REWARD_SPAN)
    assert {span.parent_id for span in rewarded} == {span.span_id for span in tools}
    (invoked,) = recording.named("invoke_agent")
    assert {span.parent_id for span in (*tools, *recording.calls)} == {invoked.span_id}


@feature("tools")
async def test_a_tools_exception_ends_the_run_and_its_span(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        raise ArithmeticError("no numbers today")

    with recording.active(), pytest.raises(ArithmeticError, match="no numbers"):
        await run(made(model, tools=[add]))
    tool = tool_of(recording)
    assert (tool.status, tool.attributes[semconv.TOOL_CALL_RESULT]) == ("error", "no numbers today")
    assert recording.named("invoke_agent")[0].status == "error"


@feature("tools")
async def test_the_result_is_what_callbacks_make_of_it(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    def other(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> dict[str, Any]:
        return {"sum": "hidden"}

    with recording.active():
        await run(made(model, tools=[add], after_tool_callback=other))
    assert tool_of(recording).attributes[semconv.TOOL_CALL_RESULT] == '{"sum": "hidden"}'
    assert server.log[1].body["messages"][-1]["content"] == '{"sum": "hidden"}'


@feature("tools")
async def test_a_callback_that_answers_in_the_tools_place(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    def instead(tool: Any, args: Any, tool_context: Any) -> dict[str, Any]:
        return {"sum": 7}

    with recording.active():
        await run(made(model, tools=[add], before_tool_callback=instead))
    assert tool_of(recording).attributes[semconv.TOOL_CALL_RESULT] == '{"sum": 7}'
    assert len(recording.calls) == 2


@feature("tools")
async def test_a_long_running_tool_without_a_response_is_no_failure(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    def add(a: int, b: int) -> None:
        """Add two numbers, some day."""

    with recording.active():
        await run(made(model, tools=[LongRunningFunctionTool(add)]))
    tool = tool_of(recording)
    assert tool.status != "error" and semconv.TOOL_CALL_RESULT not in tool.attributes


# ------------------------------------------------------------------------------------------- tracing, leaving
async def test_the_frameworks_own_spans_go_to_the_users_provider_only(
    server: ScriptedModelServer, model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    GoogleADKInstrumentor().uninstrument()
    GoogleADKInstrumentor().instrument(tracer_provider=provider)
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer(SCOPE))
    assert SCOPE in IGNORED_SCOPES
    with recording.active():
        await run(made(model, tools=[add]))
    assert {span.instrumentation_scope.name for span in exporter.get_finished_spans()} == {SCOPE}
    names = [span.name for span in recording.spans if not span.name.startswith(semconv.CALL_SPAN)]
    assert sorted(names) == ["execute_tool add", "invoke_agent solver"]
    assert recording.agents() == ["solver", "solver"]
    GoogleADKInstrumentor().uninstrument()
    assert SCOPE not in IGNORED_SCOPES


async def test_a_stream_given_up_ends_the_turn(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    runner = InMemoryRunner(made(model, tools=[add]), app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    new = types.Content(role="user", parts=[types.Part(text="how much?")])
    with recording.active():
        events = runner.run_async(user_id="user", session_id=session.id, new_message=new)
        async for _ in events:
            break
        await events.aclose()
        assert caller_tags() == {}
    assert [span.name for span in recording.named("invoke_agent")] == ["invoke_agent solver"]


async def test_after_a_turn_calls_are_nobodys(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    with recording.active():
        await run(made(model, tools=[add]))
        await model._additional_args["client"].chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "alone"}]
        )
    assert recording.agents() == ["solver", "solver", None]


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
async def test_a_marked_agent_class(
    server: ScriptedModelServer, model: Any, recording: Recording, early: bool
) -> None:
    if early:
        GoogleADKInstrumentor().uninstrument()

    @agl.agent(name="mine", methods=entry_methods(LlmAgent))
    class Mine(LlmAgent):
        pass

    if early:
        GoogleADKInstrumentor().instrument()
    with recording.active():
        await run(Mine(name="solver", model=model, tools=[add]))
    assert recording.agents() == ["mine", "mine"]
    assert len(recording.named("invoke_agent solver")) == 1
    assert_exact(recording, server.log)


async def test_outside_an_attempt_nothing_is_recorded(server: ScriptedModelServer, model: Any) -> None:
    await run(made(model, tools=[add]))
    assert len(server.log) == 2 and COUNTS.snapshot() == {}


def test_entry_methods() -> None:
    assert entry_methods(LlmAgent) == entry_methods(BaseAgent) == ("run_async",)
    assert entry_methods(InMemoryRunner) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("google-adk", "google.adk")
    assert spec.framework in sys.modules
    assert spec.instrumentor() is GoogleADKInstrumentor()
    assert list(GoogleADKInstrumentor().instrumentation_dependencies()) == [spec.requires]
    assert spec.entry_methods is not None and spec.entry_methods(LlmAgent) == entry_methods(LlmAgent)
