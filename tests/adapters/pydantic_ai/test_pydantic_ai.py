"""What is Pydantic AI's own: typed output, runs that the caller drives, delegation, tools, tracing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.script import ARGUMENTS, say
from openai import AsyncOpenAI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from packaging.version import Version
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ApprovalRequired, SkipToolExecution
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.delivery import IGNORED_SCOPES
from agentlightning.keys import CONTEXT_KEY
from agl_pydantic_ai.entries import entry_methods
from agl_pydantic_ai.instrumentor import PydanticAIInstrumentor
from agl_pydantic_ai.plugin import agl_adapters


class Answer(BaseModel):
    """The answer."""

    value: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    PydanticAIInstrumentor().instrument()
    yield
    PydanticAIInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(say, ids="always") as server:
        yield server


def model_of(server: ScriptedModelServer) -> OpenAIChatModel:
    client = AsyncOpenAI(base_url=server.url, api_key=CONTEXT_KEY, max_retries=0)
    return OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[OpenAIChatModel]:
    model = model_of(server)
    yield model
    await model.client.close()


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("pydantic-ai", server.url)


def tools_of(recording: Recording) -> list[Any]:
    return [s for s in recording.spans if s.attributes.get(semconv.OPERATION_NAME) == "execute_tool"]


# ---------------------------------------------------------------------------------------------- typed output
async def test_typed_output_by_tool_is_the_agents_call_and_no_tool(
    model: Any, server: ScriptedModelServer, recording: Recording
) -> None:
    with recording.active():
        result = await Agent(model, name="solver", output_type=Answer).run("how much?")
    assert result.output == Answer(value=42)
    assert recording.agents() == ["solver"] and tools_of(recording) == []
    assert_exact(recording, server.log)


async def test_what_a_validator_sends_back_is_a_call_of_its_own(
    model: Any, server: ScriptedModelServer, recording: Recording
) -> None:
    agent = Agent(model, name="solver", output_type=Answer, retries=2)
    refused = []

    @agent.output_validator
    def twice(answer: Answer) -> Answer:
        refused.append(answer)
        if len(refused) == 1:
            raise ModelRetry("again")
        return answer

    server.reply = lambda body: tool_call(body["tools"][0]["function"]["name"], '{"value":  42}')
    with recording.active():
        await agent.run("how much?")
    assert recording.agents() == ["solver", "solver"]
    assert_exact(recording, server.log)


# ------------------------------------------------------------------------------------------- ways of running
async def by_stream(agent: Agent[None, str]) -> None:
    async with agent.run_stream("how much?") as answer:
        assert [text async for text in answer.stream_text(delta=True)]


async def by_iter(agent: Agent[None, str]) -> None:
    async with agent.iter("how much?") as run:
        async for _ in run:
            pass


async def by_next(agent: Agent[None, str]) -> None:
    async with agent.iter("how much?") as run:
        node: Any = run.next_node
        while not agent.is_end_node(node):
            node = await run.next(node)


async def by_nodes(agent: Agent[None, str]) -> None:
    async with agent.iter("how much?") as run:
        async for node in run:
            if agent.is_model_request_node(node) or agent.is_call_tools_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass


async def by_events(agent: Agent[None, str]) -> None:
    async with agent.run_stream_events("how much?") as events:
        assert [event async for event in events]


async def by_handler(agent: Agent[None, str]) -> None:
    async def read(ctx: Any, events: Any) -> None:
        async for _ in events:
            pass

    await agent.run("how much?", event_stream_handler=read)


async def by_wrapper(agent: Agent[None, str]) -> None:
    await WrapperAgent(agent).run("how much?")


WAYS = [by_stream, by_iter, by_next, by_nodes, by_events, by_handler, by_wrapper]


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_of_running_names_the_agent_and_its_tools(
    way: Any, model: Any, server: ScriptedModelServer, recording: Recording
) -> None:
    with recording.active():
        await way(Agent(model, name="solver", tools=[add]))
    assert recording.agents() == ["solver", "solver"]
    (turn,), (tool,) = recording.named("invoke_agent"), tools_of(recording)
    assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == ARGUMENTS
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "42"
    assert {span.parent_id for span in [*recording.calls, tool]} == {turn.span_id}
    assert_exact(recording, server.log)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_blocking_face_in_a_thread(
    server: ScriptedModelServer, recording: Recording, stream: bool
) -> None:
    def work() -> None:
        loop = asyncio.new_event_loop()  # the framework keeps a thread's loop open, and would one of its own
        asyncio.set_event_loop(loop)
        model = model_of(server)
        agent = Agent(model, name="solver", tools=[add])
        if stream:
            with agent.run_stream_sync("how much?") as answer:
                assert list(answer.stream_text())
        else:
            agent.run_sync("how much?")
        loop.run_until_complete(model.client.close())
        loop.close()

    with recording.active():
        await asyncio.to_thread(work)
    assert recording.agents() == ["solver", "solver"] and len(tools_of(recording)) == 1


async def test_the_block_of_a_run_is_the_callers(model: Any, recording: Recording) -> None:
    """What he asks there by himself is nobody's turn."""
    with recording.active():
        async with Agent(model, name="solver").iter("how much?") as run:
            async for _ in run:
                await model_request(model, [ModelRequest.user_text_prompt("and you?")])
    assert set(recording.agents()) == {"solver", None} and recording.agents().count("solver") == 1


async def test_a_stream_given_up_ends_its_turn(model: Any, recording: Recording) -> None:
    with recording.active():
        async with Agent(model, name="solver").run_stream("how much?") as answer:
            async for _ in answer.stream_text():
                break
        await model_request(model, [ModelRequest.user_text_prompt("and then?")])
    (turn,) = recording.named("invoke_agent")
    assert turn.status != "error" and not COUNTS.snapshot()
    assert recording.agents() == ["solver", None]


async def test_the_frameworks_own_name_of_an_agent_without_one(model: Any, recording: Recording) -> None:
    poet = Agent(model)
    with recording.active():
        await poet.run("a poem")
        async with Agent(model).iter("a poem") as run:
            async for _ in run:
                pass
    assert recording.agents() == ["poet", "Agent"]


async def test_history_goes_on(model: Any, server: ScriptedModelServer, recording: Recording) -> None:
    agent = Agent(model, name="solver")
    with recording.active():
        first = await agent.run("one")
        await agent.run("two", message_history=first.all_messages())
    one, two = (exchange.prompt_ids for exchange in server.log)
    assert len(two) > len(one) and recording.agents() == ["solver", "solver"]
    assert_exact(recording, server.log)


# ------------------------------------------------------------------------------------------------ delegation
@pytest.mark.parametrize("inner_stream", [False, True], ids=["whole", "stream"])
async def test_an_agent_as_a_tool_keeps_its_name(
    model: Any, recording: Recording, inner_stream: bool
) -> None:
    inner = Agent(model, name="adder")

    async def ask(ctx: RunContext[None], value: int) -> str:
        if not inner_stream:
            return (await inner.run("17 + 25", usage=ctx.usage)).output
        async with inner.run_stream("17 + 25", usage=ctx.usage) as answer:
            return await answer.get_output()

    outer = Agent(model, name="boss", tools=[ask])
    with recording.active():
        await outer.run("how much?")
    assert recording.agents() == ["boss", "adder", "boss"]
    (tool,) = tools_of(recording)
    below = next(span for span in recording.named("invoke_agent") if "adder" in span.name)
    assert below.parent_id == tool.span_id
    assert tool.attributes[semconv.TAG_PREFIX + "agent"] == "boss"


async def test_agents_at_once_in_one_task_group(model: Any, recording: Recording) -> None:
    agents = [Agent(model, name=f"n{number}", tools=[add]) for number in range(4)]
    with recording.active():
        await asyncio.gather(*(agent.run("how much?") for agent in agents))
    assert sorted(map(str, recording.agents())) == sorted([f"n{n}" for n in range(4)] * 2)


# ----------------------------------------------------------------------------------- tools that do not answer
async def test_a_retry_says_what_the_model_is_told(
    model: Any, server: ScriptedModelServer, recording: Recording
) -> None:
    asked = []

    def once(a: int, b: int) -> int:
        asked.append(a)
        if len(asked) == 1:
            raise ModelRetry("other numbers")
        return 42

    replies = iter([tool_call("once", '{"a": 1,"b": 2}'), tool_call("once", '{"a":3,"b":4}'), "42"])
    server.reply = lambda body: next(replies)
    with recording.active():
        await Agent(model, name="solver", tools=[once]).run("how much?")
    first, second = tools_of(recording)
    assert first.status == "error" and second.status != "error"
    told = server.log[1].body["messages"][-1]["content"]
    assert first.attributes[semconv.TOOL_CALL_RESULT] == told and "other numbers" in told
    assert_exact(recording, server.log)


async def test_refused_arguments_leave_a_failed_span(
    model: Any, server: ScriptedModelServer, recording: Recording
) -> None:
    replies = iter([tool_call("add", '{"a": "x",  "b": 2}'), "42"])
    server.reply = lambda body: next(replies)
    with recording.active():
        await Agent(model, name="solver", tools=[add]).run("how much?")
    (tool,) = tools_of(recording)
    assert tool.status == "error" and tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == '{"a": "x",  "b": 2}'
    assert tool.attributes[semconv.TAG_PREFIX + "agent"] == "solver"


async def test_an_exception_of_a_tool_ends_the_run_and_is_seen(model: Any, recording: Recording) -> None:
    def add(a: int, b: int) -> int:
        raise ArithmeticError("no numbers today")

    with recording.active(), pytest.raises(ArithmeticError):
        await Agent(model, name="solver", tools=[add]).run("how much?")
    assert [span.status for span in tools_of(recording)] == ["error"]
    assert [span.status for span in recording.named("invoke_agent")] == ["error"]


async def test_a_tool_that_waits_for_approval_did_not_fail(model: Any, recording: Recording) -> None:
    def add(ctx: RunContext[None], a: int, b: int) -> int:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return a + b

    agent = Agent(model, name="solver", tools=[add], output_type=[str, DeferredToolRequests])
    with recording.active():
        result = await agent.run("how much?")
        assert isinstance(result.output, DeferredToolRequests)
        assert not tools_of(recording), "it has not run"
        (waiting,) = [s for s in recording.spans if s.attributes.get(semconv.INTERRUPTED)]
        assert waiting.status != "error" and semconv.TOOL_CALL_RESULT not in waiting.attributes
        approved = DeferredToolResults(approvals={result.output.approvals[0].tool_call_id: True})
        await agent.run(message_history=result.all_messages(), deferred_tool_results=approved)
    (tool,) = tools_of(recording)
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "42"


@pytest.mark.skipif(Version(version("pydantic-ai-slim")) < Version("2.62"), reason="no hook runs inside ours")
async def test_a_hook_that_answers_for_a_tool_is_its_result(model: Any, recording: Recording) -> None:
    async def known(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        raise SkipToolExecution(42)

    agent = Agent(model, name="solver", tools=[add], capabilities=[Hooks(before_tool_execute=known)])
    with recording.active():
        await agent.run("how much?")
    (tool,) = tools_of(recording)
    assert tool.status != "error" and tool.attributes[semconv.TOOL_CALL_RESULT] == "42"


async def test_a_tool_in_a_thread_knows_its_agent(model: Any, recording: Recording) -> None:
    seen = []

    def add(a: int, b: int) -> int:
        seen.append((caller_tags().get("agent"), threading.current_thread() is threading.main_thread()))
        return a + b

    with recording.active():
        await Agent(model, name="solver", tools=[add]).run("how much?")
    assert seen == [("solver", False)]


# -------------------------------------------------------------------------------------------- its own tracing
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_its_own_tracing_says_nothing_twice_and_stays_the_users(
    model: Any, server: ScriptedModelServer, recording: Recording, stream: bool
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    try:
        with recording.active():
            await (by_stream if stream else by_iter)(Agent(model, name="solver", tools=[add]))
    finally:
        Agent.instrument_all(False)
    assert recording.agents() == ["solver", "solver"]
    assert len(recording.named("invoke_agent")) == len(tools_of(recording)) == 1
    assert_exact(recording, server.log)
    theirs = exporter.get_finished_spans()
    (run,) = [span for span in theirs if span.name.startswith(("invoke_agent", "agent run"))]
    chats = [span for span in theirs if span.name.startswith("chat")]
    assert len(chats) == 2 and {span.parent.span_id for span in chats} == {run.context.span_id}


# ------------------------------------------------------------------------------------------------ marks, undo
@agl.agent(name="mine")
class Mine(Agent[None, str]):
    """A user's subclass."""


async def test_a_marked_subclass(model: Any, recording: Recording) -> None:
    with recording.active():
        await Mine(model, name="theirs").run("a poem")
        await Mine(model).run("a poem")
        await Mine(model, tools=[add]).run("how much?")
    assert recording.agents() == ["mine"] * 4


async def test_a_marked_class_that_holds_agents(model: Any, recording: Recording) -> None:
    """Agents keep their own names inside it; what it asks by itself is its own."""

    @agl.agent(name="desk")
    class Desk:
        def __init__(self, model: Any) -> None:
            self.model, self.agent = model, Agent(model, name="clerk")

        async def run(self, task: str) -> str:
            await model_request(self.model, [ModelRequest.user_text_prompt(task)])
            return (await self.agent.run(task)).output

    with recording.active():
        await Desk(model).run("a letter")
    assert recording.agents() == ["desk", "clerk"]


def test_entry_methods_are_those_of_agents_only() -> None:
    assert entry_methods(Mine) == entry_methods(WrapperAgent) == ("run",)
    assert entry_methods(dict) == ()


async def test_a_cancelled_turn_ends(model: Any, server: ScriptedModelServer, recording: Recording) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(body: dict[str, Any]) -> Any:
        asked.set()
        await never.wait()

    server.reply = hang
    with recording.active():
        work = asyncio.create_task(Agent(model, name="solver").run("how much?"))
        await asked.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    never.set()
    (turn,) = recording.named("invoke_agent")
    assert turn.status == "error" and recording.agents() == ["solver"]


async def test_outside_an_attempt_a_run_is_what_it_was(model: Any) -> None:
    async with Agent(model, name="solver").iter("how much?") as run:
        inside = run.ctx.deps.root_capability
        async for _ in run:
            pass
    assert "Turn" not in repr(inside) and not COUNTS.snapshot()


def test_undo() -> None:
    PydanticAIInstrumentor().uninstrument()
    plain = vars(Agent)["iter"]
    PydanticAIInstrumentor().instrument()
    assert vars(Agent)["iter"] is not plain and "pydantic-ai" in IGNORED_SCOPES
    PydanticAIInstrumentor().uninstrument()
    assert vars(Agent)["iter"] is plain and "pydantic-ai" not in IGNORED_SCOPES


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("pydantic-ai", "pydantic_ai")
    assert spec.requires == "pydantic-ai-slim >= 2.31.1, < 3"
