"""What is Strands' own: agents as tools, swarms, graphs, events that are read, refused calls, marks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("strands")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_each_exact, assert_exact
from agl_testing.contract.script import say
from openai import AsyncOpenAI
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder, Swarm

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.delivery import IGNORED_SCOPES
from agentlightning.keys import CONTEXT_KEY
from agl_strands_agents.entries import entry_methods
from agl_strands_agents.instrumentor import SCOPE, StrandsInstrumentor
from agl_strands_agents.plugin import agl_adapters


@tool  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    StrandsInstrumentor().instrument()
    yield
    StrandsInstrumentor().uninstrument()
    assert SCOPE not in IGNORED_SCOPES


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(say, ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[OpenAIModel]:
    client = AsyncOpenAI(base_url=server.url, api_key=CONTEXT_KEY, max_retries=0)
    yield OpenAIModel(client, model_id="policy")
    await client.close()


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("strands", server.url)


def both_done(state: Any) -> bool:
    """Whether the judge may begin: a graph's edge leads on when any branch is done."""
    done = {node.node_id for node in state.completed_nodes}
    return {"node-left", "node-right"} <= done


def made(model: Any, name: str = "solver", kind: type[Agent] = Agent, tools: Any = ()) -> Agent:
    return kind(
        model=model, name=name, system_prompt=f"You are {name}.", tools=list(tools), callback_handler=None
    )


@feature("multi-agent", "tools")
async def test_an_agent_as_a_tool(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    helper = made(model, "helper", tools=[add])

    @tool  # type: ignore[untyped-decorator]
    async def ask(question: str) -> str:
        """Ask the helper."""
        return str(await helper.invoke_async(question))

    def script(body: dict[str, Any]) -> Any:
        boss = "You are boss" in str(body["messages"][0]["content"])
        if boss and body["messages"][-1]["role"] != "tool":
            return tool_call("ask", {"question": "1+2?"})
        return say(body)

    server.reply = script
    with recording.active():
        await made(model, "boss", tools=[ask]).invoke_async("go")
    assert recording.agents() == ["boss", "helper", "helper", "boss"]
    names = {span.attributes[semconv.TOOL_NAME]: span for span in recording.named("execute_tool")}
    inner = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "helper")
    assert inner.parent_id == names["ask"].span_id and names["add"].parent_id == inner.span_id
    assert_exact(recording, server.log)


@feature("multi-agent", "tools")
async def test_a_swarm_hands_over(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    def script(body: dict[str, Any]) -> Any:
        first = "You are reader" in str(body["messages"][0]["content"])
        if first and body["messages"][-1]["role"] != "tool":
            return tool_call("handoff_to_agent", {"agent_name": "writer", "message": "write it"})
        return "done"

    server.reply = script
    with recording.active():
        await Swarm([made(model, "reader"), made(model, "writer")]).invoke_async("go")
    assert list(dict.fromkeys(recording.agents())) == ["reader", "writer"]
    (handed,) = recording.named("execute_tool")
    assert handed.attributes[semconv.TOOL_NAME] == "handoff_to_agent"
    assert handed.attributes[semconv.AGENT_NAME] == "reader"
    turns = [span.attributes[semconv.AGENT_NAME] for span in recording.named("invoke_agent")]
    assert turns == ["reader", "writer"]
    assert_exact(recording, server.log)


@feature("multi-agent", "concurrency")
async def test_a_graph_runs_branches_at_once(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    graph = GraphBuilder().set_max_node_executions(9)  # without a bound it warns
    for name in ("planner", "left", "right", "judge"):
        graph.add_node(made(model, name), f"node-{name}")
    for before, after in (("planner", "left"), ("planner", "right"), ("left", "judge"), ("right", "judge")):
        graph.add_edge(f"node-{before}", f"node-{after}", condition=both_done if after == "judge" else None)
    graph.set_entry_point("node-planner")
    server.reply = lambda body: "done"
    with recording.active():
        await graph.build().invoke_async("go")
    first, *branches, last = recording.agents()
    assert (first, sorted(map(str, branches)), last) == ("planner", ["left", "right"], "judge")
    assert len(recording.named("invoke_agent")) == 4
    assert_each_exact(recording, server.log)


@feature("tools")
async def test_a_call_of_no_tool_leaves_a_failed_span(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    server.reply = lambda body: (
        "done" if body["messages"][-1]["role"] == "tool" else tool_call("nothing", {"n": 1})
    )
    with recording.active():
        await made(model, tools=[add]).invoke_async("go")
    (called,) = recording.named("execute_tool")
    assert (called.status, called.attributes[semconv.TOOL_NAME]) == ("error", "nothing")
    assert "nothing" in called.attributes[semconv.TOOL_CALL_RESULT]


@feature("stream")
async def test_a_turn_whose_events_are_read(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    with recording.active():
        async for _ in made(model, tools=[add]).stream_async("go"):
            assert caller_tags() == {}
    assert recording.agents() == ["solver", "solver"] and server.log[0].body["stream"]
    assert [span.name for span in recording.named("invoke_agent")] == ["invoke_agent solver"]
    assert_exact(recording, server.log)


async def test_outside_an_attempt_nothing_is_recorded(server: ScriptedModelServer, model: Any) -> None:
    await made(model, tools=[add]).invoke_async("go")
    assert len(server.log) == 2 and COUNTS.snapshot() == {}


async def test_a_marked_agent_class(model: Any, recording: Recording) -> None:
    @agl.agent(name="mine", methods=entry_methods(Agent))
    class Mine(Agent):  # type: ignore[misc]
        pass

    with recording.active():
        await made(model, kind=Mine).invoke_async("go")
    assert recording.agents() == ["mine"]
    assert len(recording.named("invoke_agent solver")) == 1


def test_entry_methods() -> None:
    assert entry_methods(Agent) == ("__call__", "invoke_async", "stream_async")
    assert entry_methods(OpenAIModel) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("strands-agents", "strands")
    assert spec.instrumentor() is StrandsInstrumentor()
    assert list(StrandsInstrumentor().instrumentation_dependencies()) == [spec.requires]
    assert spec.entry_methods is not None and "stream_async" in spec.entry_methods(Agent)
