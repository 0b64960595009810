"""What is LlamaIndex's own: agents that hand over, agents as tools, ReAct, several calls at once, events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.script import say
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.emit import emit_reward
from agentlightning.keys import CONTEXT_KEY
from agl_llama_index.entries import entry_methods
from agl_llama_index.instrumentor import LlamaIndexInstrumentor
from agl_llama_index.plugin import agl_adapters

pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own, of pydantic


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    LlamaIndexInstrumentor().instrument()
    yield
    LlamaIndexInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(say, ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[OpenAILike]:
    client = AsyncOpenAI(base_url=server.url, api_key=CONTEXT_KEY, max_retries=0)
    kinds = {"is_chat_model": True, "is_function_calling_model": True}
    yield OpenAILike(model="policy", api_key=CONTEXT_KEY, async_openai_client=client, max_retries=0, **kinds)
    await client.close()


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("llama-index", server.url)


def made(model: Any, name: str = "solver", kind: type[Any] = FunctionAgent, **more: Any) -> Any:
    more = {"streaming": False, **more}
    return kind(name=name, description="Works.", llm=model, system_prompt=f"You are {name}.", **more)


def tools_of(recording: Recording) -> list[Any]:
    return recording.named("execute_tool")


def turns_of(recording: Recording) -> list[str]:
    spans = sorted(recording.named("invoke_agent"), key=lambda span: span.start_time)
    return [span.attributes[semconv.AGENT_NAME] for span in spans]


# ----------------------------------------------------------------------------------------------------- agents
@feature("multi-agent", "tools")
async def test_agents_that_hand_over(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    def script(body: dict[str, Any]) -> Any:
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        if body["messages"][-1]["role"] == "tool":
            return "done"
        if "You are writer" in body["messages"][0]["content"]:
            return tool_call("handoff", {"to_agent": "critic", "reason": "it is written"})
        return tool_call("add", {"a": 1, "b": 2}) if "add" in offered else "done"

    server.reply = script
    members = [made(model, "writer"), made(model, "critic", tools=[add], can_handoff_to=[])]
    with recording.active():
        await AgentWorkflow(agents=members, root_agent="writer").run(user_msg="go")
    assert recording.agents()[:2] == ["writer", "critic"] and set(recording.agents()[1:]) == {"critic"}
    assert turns_of(recording) == ["writer", "critic"]
    turns = {span.attributes[semconv.AGENT_NAME]: span for span in recording.named("invoke_agent")}
    names = {span.attributes[semconv.TOOL_NAME]: span for span in tools_of(recording)}
    assert names["handoff"].parent_id == turns["writer"].span_id
    assert names["handoff"].attributes[semconv.AGENT_NAME] == "writer"
    assert {span.parent_id for span in recording.calls[1:]} == {turns["critic"].span_id}
    assert_exact(recording, server.log)


@feature("multi-agent", "tools")
async def test_an_agent_as_a_tool(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    helper = made(model, "helper", tools=[add])

    async def ask(question: str) -> str:
        """Ask the helper."""
        return str(await helper.run(user_msg=question))

    def script(body: dict[str, Any]) -> Any:
        boss = "You are boss" in body["messages"][0]["content"]
        if boss and body["messages"][-1]["role"] != "tool":
            return tool_call("ask", {"question": "1+2?"})
        return say(body)

    server.reply = script
    with recording.active():
        await made(model, "boss", tools=[ask]).run(user_msg="go")
    assert recording.agents() == ["boss", "helper", "helper", "boss"]
    names = {span.attributes[semconv.TOOL_NAME]: span for span in tools_of(recording)}
    inner = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "helper")
    assert inner.parent_id == names["ask"].span_id and names["add"].parent_id == inner.span_id
    assert_exact(recording, server.log)


@feature("tools")
async def test_an_agent_that_writes_its_calls_as_text(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    def script(body: dict[str, Any]) -> Any:
        if any("Observation: 3" in str(message["content"]) for message in body["messages"]):
            return "Thought: I can answer.\nAnswer: 3"
        return 'Thought: I need a tool.\nAction: add\nAction Input: {"a": 1, "b": 2}'

    server.reply = script
    with recording.active():
        assert str(await made(model, kind=ReActAgent, tools=[add]).run(user_msg="1+2?")) == "3"
    assert recording.agents() == ["solver", "solver"]
    (tool,) = tools_of(recording)
    assert json.loads(tool.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"a": 1, "b": 2}
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "3"
    assert_exact(recording, server.log)


# ------------------------------------------------------------------------------------------------------ tools
@feature("tools", "concurrency")
async def test_several_calls_at_once_keep_their_own(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    async def rate(n: int) -> str:
        """Rate."""
        await asyncio.sleep(0)
        emit_reward(n, final=False)
        return str(2 * n)

    wanted = [0, 1, 2, 2]
    calls = [
        tool_call("rate", {"n": n}, call_id=f"call_{at}")["tool_calls"][0] for at, n in enumerate(wanted)
    ]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    server.reply = lambda body: "done" if body["messages"][-1]["role"] == "tool" else asked
    with recording.active():
        # LlamaIndex 0.13 keeps only the first call of an answer that does not stream
        await made(model, tools=[rate], streaming=True).run(user_msg="go")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["n"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in tools_of(recording)
    }
    assert found == {f"call_{at}": (n, str(2 * n)) for at, n in enumerate(wanted)}
    rewarded = recording.named(semconv.REWARD_SPAN)
    assert {span.parent_id for span in rewarded} == {span.span_id for span in tools_of(recording)}
    (invoked,) = recording.named("invoke_agent")
    assert {span.parent_id for span in (*tools_of(recording), *recording.calls)} == {invoked.span_id}


@feature("tools")
async def test_a_call_of_no_tool_leaves_a_failed_span(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    server.reply = lambda body: (
        "done" if body["messages"][-1]["role"] == "tool" else tool_call("nothing", {"n": 1})
    )
    with recording.active():
        await made(model, tools=[add]).run(user_msg="go")
    (tool,) = tools_of(recording)
    assert (tool.status, tool.attributes[semconv.TOOL_NAME]) == ("error", "nothing")
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == server.log[1].body["messages"][-1]["content"]


# ------------------------------------------------------------------------------------------------------- runs
@feature("stream")
async def test_a_run_whose_events_are_read(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    with recording.active():
        handler = made(model, streaming=True, tools=[add]).run(user_msg="go")
        async for _ in handler.stream_events():
            assert caller_tags() == {}
        await handler
    assert recording.agents() == ["solver", "solver"] and server.log[0].body["stream"]
    assert turns_of(recording) == ["solver"]
    assert_exact(recording, server.log)


async def test_a_run_that_fails_is_a_failed_turn(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    server.reply = lambda body: tool_call("add", {"a": 1, "b": 2})
    with recording.active(), pytest.raises(Exception, match="iterations"):
        await made(model, tools=[add]).run(user_msg="go", max_iterations=2)
    (turn,) = recording.named("invoke_agent")
    assert turn.status == "error" and recording.agents() == ["solver", "solver"]


async def test_after_a_turn_calls_are_nobodys(model: Any, recording: Recording) -> None:
    with recording.active():
        await made(model).run(user_msg="go")
        await model.achat([ChatMessage(role="user", content="alone")])
    assert recording.agents() == ["solver", None]


async def test_outside_an_attempt_nothing_is_recorded(server: ScriptedModelServer, model: Any) -> None:
    await made(model, tools=[add]).run(user_msg="go")
    await AgentWorkflow(agents=[made(model, tools=[add])], root_agent="solver").run(user_msg="go")
    assert len(server.log) == 4 and COUNTS.snapshot() == {}


# ----------------------------------------------------------------------------------------------------- plugin
async def test_a_marked_agent_class(model: Any, recording: Recording) -> None:
    @agl.agent(name="mine", methods=entry_methods(FunctionAgent))
    class Mine(FunctionAgent):  # type: ignore[misc]
        pass

    with recording.active():
        await made(model, kind=Mine).run(user_msg="go")
    assert recording.agents() == ["mine"]


def test_entry_methods() -> None:
    assert entry_methods(FunctionAgent) == entry_methods(AgentWorkflow) == ("run",)
    assert entry_methods(OpenAILike) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("llama-index", "llama_index.core")
    assert spec.instrumentor() is LlamaIndexInstrumentor()
    assert list(LlamaIndexInstrumentor().instrumentation_dependencies()) == [spec.requires]
    assert spec.entry_methods is not None and spec.entry_methods(FunctionAgent) == ("run",)
