"""What is LangGraph's own: nodes, sub-graphs, Send, prebuilt agents, handoffs, interrupts, functions."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from contract.chat_openai import given, opened
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, Send, interrupt

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.identity import CALLER_SOURCES
from agentlightning.capture.installation import capturing
from agl_langchain.entries import entry_methods
from agl_langchain.handler import HANDLER
from agl_langchain.instrumentor import LangChainInstrumentor
from agl_langchain.runs import ANSWER_LISTENERS, RUN_READERS, RUNS
from agl_langchain.tools import HANDOFF
from agl_langgraph.callers import CALLERS
from agl_langgraph.instrumentor import LangGraphInstrumentor
from agl_langgraph.plugin import agl_adapters


class Words(TypedDict):
    words: Annotated[list[str], operator.add]


class One(TypedDict):
    word: str


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    LangGraphInstrumentor().instrument()
    yield
    assert not RUNS
    LangGraphInstrumentor().uninstrument()


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[Any]:
    async with opened(server.url) as model:
        yield model


def tags(recording: Recording, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(s.attributes.get(semconv.TAG_PREFIX + name) for name in names) for s in recording.calls]


@pytest.mark.parametrize("face", ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"])
@feature("multi-agent")
async def test_send_tells_its_branches_apart(server: ScriptedModelServer, model: Any, face: str) -> None:
    def write(state: One) -> dict[str, Any]:
        return {"words": [model.invoke(state["word"]).content]}

    async def awrite(state: One) -> dict[str, Any]:
        return {"words": [(await model.ainvoke(state["word"])).content]}

    def fan(state: Words) -> list[Send]:
        return [Send("write", {"word": "same"}) for _ in range(3)]

    graph = StateGraph(Words)
    graph.add_node("plan", lambda state: {"words": [model.invoke("plan").content]})
    graph.add_node("write", awrite if face.startswith("a") else write)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", fan, ["write"])
    app = graph.compile()
    recording = Recording("send", server.url)
    with recording.active():
        if face == "invoke":
            app.invoke({"words": []})
        elif face == "ainvoke":
            await app.ainvoke({"words": []})
        elif face == "stream":
            list(app.stream({"words": []}))
        elif face == "astream":
            [_ async for _ in app.astream({"words": []})]
        elif face == "batch":
            app.batch([{"words": []}])
        else:
            await app.abatch([{"words": []}])
    found = sorted(tags(recording, "agent", "node", "step", "branch"), key=str)
    assert found == [("plan", "plan", "1", None)] + [("write", "write", "2", str(n)) for n in range(3)]
    nodes = {span.span_id: span for span in recording.named("node ")}
    assert len(nodes) == 4 and {call.parent_id for call in recording.calls} == set(nodes)
    assert len({call.attributes[semconv.RESPONSE_ID] for call in recording.calls}) == len(server.log) == 4
    assert COUNTS.snapshot() == {}


@feature("multi-agent")
async def test_sub_graphs_say_where_they_stand(server: ScriptedModelServer, model: Any) -> None:
    async def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState).add_node("search", speak).add_edge(START, "search").compile()
    middle = StateGraph(MessagesState).add_node("read", inner).add_node("sum", speak)
    middle = middle.add_edge(START, "read").add_edge("read", "sum").compile()

    async def called(state: MessagesState) -> dict[str, Any]:
        await inner.ainvoke(state)
        return await speak(state)

    outer = StateGraph(MessagesState).add_node("research", middle).add_node("call", called)
    app = outer.add_edge(START, "research").add_edge("research", "call").compile()
    recording = Recording("nested", server.url)
    with recording.active():
        await app.ainvoke(given("go"))
    assert tags(recording, "graph", "node", "agent") == [
        ("research/read", "search", "search"),
        ("research", "sum", "sum"),
        ("call", "search", "search"),
        (None, "call", "call"),
    ]
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_agents_in_a_graph_keep_their_names(server: ScriptedModelServer, model: Any) -> None:
    """``create_agent`` and ``create_react_agent``, named and not, as nodes and inside nodes."""
    named, nameless = create_agent(model, name="poet"), create_agent(model)

    async def inside(state: MessagesState) -> dict[str, Any]:
        await nameless.ainvoke(state)
        await named.ainvoke(state)
        return {"messages": [await model.ainvoke(state["messages"])]}

    with pytest.warns(DeprecationWarning, match="create_react_agent"):
        react = create_react_agent(model, [], name="actor")
    graph = StateGraph(MessagesState)
    nodes = {"one": named, "two": nameless, "three": inside, "four": react}
    for before, (name, node) in zip((START, *nodes), nodes.items(), strict=False):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    recording = Recording("named", server.url)
    with recording.active():
        await graph.compile().ainvoke(given("go"))
        await react.ainvoke(given("alone"))
        await nameless.ainvoke(given("alone"))
    assert tags(recording, "agent", "node", "graph") == [
        ("poet", "model", "one"),
        ("two", "model", "two"),
        ("three", "model", "three"),
        ("poet", "model", "three"),
        ("three", "three", None),
        ("actor", "agent", "four"),
        ("actor", "agent", None),
        (None, "model", None),
    ]
    assert_exact(recording, server.log)


@feature("multi-agent")
async def test_a_tool_is_its_callers_and_so_is_what_it_asks(server: ScriptedModelServer, model: Any) -> None:
    @tool
    async def consult(question: str) -> str:
        """Ask somebody."""
        return str((await model.ainvoke(question)).content)

    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return tool_call("consult", {"question": "help"}, call_id=f"call_{len(server.log)}")
        return "done"

    server.reply = script
    asking = model.bind_tools([consult])

    async def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asking.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("solver", speak).add_node("tools", ToolNode([consult]))
    graph.add_edge(START, "solver").add_conditional_edges("solver", tools_condition)
    app = graph.add_edge("tools", "solver").compile()
    recording = Recording("caller", server.url)
    with recording.active():
        await app.ainvoke(given("go"))
    assert tags(recording, "agent", "node") == [
        ("solver", "solver"),
        ("solver", "tools"),
        ("solver", "solver"),
    ]
    (executed,) = recording.named("execute_tool")
    assert executed.attributes[semconv.AGENT_NAME] == "solver"
    assert recording.calls[1].parent_id == executed.span_id


@feature("multi-agent")
async def test_a_handoff_between_agents(server: ScriptedModelServer, model: Any) -> None:
    @tool(return_direct=True)
    def to_bob() -> Command[Any]:
        """Hand over to bob."""
        return Command(goto="bob", graph=Command.PARENT)

    def script(body: dict[str, Any]) -> Any:
        return tool_call("to_bob", {}) if body.get("tools") else "thanks"

    server.reply = script
    graph = StateGraph(MessagesState).add_edge(START, "alice")
    graph.add_node("alice", create_agent(model, [to_bob], name="alice"), destinations=("bob",))
    graph.add_node("bob", create_agent(model, name="bob"))
    recording = Recording("handoff", server.url)
    with recording.active():
        await graph.compile().ainvoke(given("go"))
    assert recording.agents() == ["alice", "bob"]
    (executed,) = recording.named("execute_tool")
    assert executed.attributes[HANDOFF] == "bob" and executed.attributes[semconv.AGENT_NAME] == "alice"
    turns = recording.named("invoke_agent")
    assert [span.status for span in turns] == ["ok", "ok"]
    assert [bool(span.attributes.get(semconv.INTERRUPTED)) for span in turns] == [True, False]
    assert_exact(recording, server.log)


async def test_an_interrupt_is_no_error_and_goes_on(server: ScriptedModelServer, model: Any) -> None:
    async def review(state: MessagesState) -> dict[str, Any]:
        answer = interrupt("may I?")
        return {"messages": [await model.ainvoke(f"the human said {answer}")]}

    graph = StateGraph(MessagesState).add_node("review", review).add_edge(START, "review")
    app, config = graph.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}}
    recording = Recording("human", server.url)
    with recording.active():
        await app.ainvoke(given("go"), config)
        await app.ainvoke(Command(resume="yes"), config)
    assert recording.agents() == ["review"]
    first, second = recording.named("node ")
    assert (first.status, first.attributes[semconv.INTERRUPTED]) == ("ok", True)
    assert second.status == "ok" and semconv.INTERRUPTED not in second.attributes
    assert_exact(recording, server.log)


async def test_a_failing_node_is_an_error(server: ScriptedModelServer, model: Any) -> None:
    async def fall(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke("before")
        raise ArithmeticError("no numbers today")

    app = StateGraph(MessagesState).add_node("fall", fall).add_edge(START, "fall").compile()
    recording = Recording("failing", server.url)
    with recording.active(), pytest.raises(ArithmeticError):
        await app.ainvoke(given("go"))
    (node,) = recording.named("node ")
    assert node.status == "error" and node.attributes[semconv.EXCEPTION_TYPE] == "ArithmeticError"
    assert_exact(recording, server.log)


@pytest.mark.parametrize("blocking", [True, False])
async def test_functional_graphs(server: ScriptedModelServer, model: Any, blocking: bool) -> None:
    @task
    def write(word: str) -> str:
        return str(model.invoke(word).content)

    @task
    async def awrite(word: str) -> str:
        return str((await model.ainvoke(word)).content)

    @entrypoint()
    def flow(words: list[str]) -> list[str]:
        return [future.result() for future in [write(word) for word in words]]

    @entrypoint()
    async def aflow(words: list[str]) -> list[str]:
        return list(await asyncio.gather(*(awrite(word) for word in words)))

    recording = Recording("functional", server.url)
    with recording.active():
        if blocking:
            flow.invoke(["same", "same"])
        else:
            await aflow.ainvoke(["same", "same"])
    name = "write" if blocking else "awrite"
    assert recording.agents() == [name, name]
    assert len({call.parent_id for call in recording.calls}) == 2


@feature("concurrency")
async def test_sixteen_graphs_in_threads(server: ScriptedModelServer, model: Any) -> None:
    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("a", speak).add_node("b", speak)
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile()
    recordings = [Recording(str(number), server.url) for number in range(16)]

    def work(recording: Recording) -> None:
        with recording.active():
            app.invoke(given(recording.context.attempt_id))

    await asyncio.gather(*(asyncio.to_thread(work, recording) for recording in recordings))
    for recording in recordings:
        mine = [x for x in server.log if x.headers[semconv.HEADER_ATTEMPT] == recording.context.attempt_id]
        assert recording.agents() == ["a", "b"]
        assert_exact(recording, mine)
        assert all(recording.context.attempt_id in str(exchange.body) for exchange in mine)


# ------------------------------------------------------------------------------------------ switching
def test_both_adapters_share_one_door() -> None:
    with capturing([LangChainInstrumentor()]):
        assert HANDLER.active and len(CALLER_SOURCES) == 1
        LangGraphInstrumentor().uninstrument()
        assert HANDLER.active and len(CALLER_SOURCES) == len(RUN_READERS) == 1
        LangGraphInstrumentor().instrument()
    assert HANDLER.active and len(RUN_READERS) == 2
    LangGraphInstrumentor().uninstrument()
    assert CALLER_SOURCES == RUN_READERS == ANSWER_LISTENERS == [] and not CALLERS and not HANDLER.active
    LangGraphInstrumentor().instrument()


def test_entry_methods() -> None:
    app = StateGraph(MessagesState).add_node("a", lambda state: state).add_edge(START, "a").compile()
    assert {"invoke", "ainvoke", "stream", "astream"} <= set(entry_methods(type(app)))
    assert list(entry_methods(dict)) == []


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("langgraph", "langgraph")
    assert spec.instrumentor() is LangGraphInstrumentor()
    assert list(LangGraphInstrumentor().instrumentation_dependencies()) == [spec.requires]


async def test_marks_and_the_names_of_nodes(server: ScriptedModelServer, model: Any) -> None:
    """Around a graph a mark leaves the nodes their names; in a node it names its own calls, and is nearer."""

    @agl.agent(name="critic", select=False)
    class Critic:
        async def run(self, text: str) -> str:
            return str((await model.ainvoke(text)).content)

    async def write(state: Words) -> Words:
        return {"words": [str((await model.ainvoke("write")).content)]}

    async def check(state: Words) -> Words:
        return {"words": [await Critic().run("check")]}

    @agl.agent(name="app", select="re:wri.*")
    class App:
        def __init__(self) -> None:
            graph = StateGraph(Words)
            graph.add_node("write", write).add_node("check", check)
            graph.add_edge(START, "write").add_edge("write", "check").add_edge("check", END)
            self.graph = graph.compile()

        async def run(self, task: str) -> Any:
            return await self.graph.ainvoke({"words": []})

    recording = Recording("marked", server.url)
    with recording.active():
        await App().run("go")
    assert tags(recording, "agent", "node") == [("write", "write"), ("critic", "check")]
    assert [semconv.HEADER_SELECTED in exchange.headers for exchange in server.log] == [False, True]
    assert_exact(recording, server.log)
