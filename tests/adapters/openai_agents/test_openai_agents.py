"""What is the SDK's own: handoffs, agents as tools, guardrails, its tracing, and the Responses API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents.tracing")

import agents
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    WebSearchTool,
    function_tool,
)
from agents.models._openai_shared import get_use_responses_by_default
from agents.tracing import TracingProcessor, get_trace_provider
from agents.tracing.processors import BackendSpanExporter
from agents.tracing.spans import NoOpSpan
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.through_gateway import assert_one_row, leased_attempt
from openai import AsyncOpenAI
from opentelemetry import trace
from pydantic import BaseModel

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.context import tagged
from agentlightning.capture.emit import emit_reward
from agl_openai_agents.bridge import BRIDGE, HANDOFF_FROM, HANDOFF_TO
from agl_openai_agents.entries import entry_methods
from agl_openai_agents.instrumentor import OpenAIAgentsInstrumentor
from agl_openai_agents.plugin import agl_adapters
from agl_openai_agents.untraced import WITHHELD

TRACED = pytest.mark.parametrize(
    "config", [None, RunConfig(tracing_disabled=True)], ids=["traced", "untraced"]
)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Seen(TracingProcessor):
    """A processor of the user's."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def on_trace_start(self, trace: Any) -> None: ...
    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...
    def on_span_end(self, span: Any) -> None:
        self.kinds.append(span.span_data.type)


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    agents.set_trace_processors([])
    OpenAIAgentsInstrumentor().instrument()
    yield
    OpenAIAgentsInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def client(server: ScriptedModelServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url, api_key="agl-context") as client:
        yield client


@pytest.fixture
def model(client: AsyncOpenAI) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("policy", client)


async def run(agent: Agent, config: RunConfig | None, stream: bool = False) -> Any:
    if not stream:
        return await Runner.run(agent, "go", run_config=config)
    result = Runner.run_streamed(agent, "go", run_config=config)
    async for _ in result.stream_events():
        pass
    return result


@TRACED
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@feature("multi-agent")
async def test_a_handoff(server: ScriptedModelServer, model: Any, config: Any, stream: bool) -> None:
    server.reply = lambda body: tool_call("transfer_to_bob", {}) if body.get("tools") else "thanks"
    recording = Recording("handoff", server.url)
    with recording.active():
        alice = Agent(name="alice", model=model, handoffs=[Agent(name="bob", model=model)])
        result = await run(alice, config, stream)
    assert result.final_output == "thanks" and recording.agents() == ["alice", "bob"]
    (handoff,) = recording.named("handoff")
    assert (handoff.attributes[HANDOFF_FROM], handoff.attributes[HANDOFF_TO]) == ("alice", "bob")
    assert handoff.attributes[semconv.AGENT_NAME] == "alice"
    invoked = {span.attributes[semconv.AGENT_NAME]: span.span_id for span in recording.named("invoke_agent")}
    assert [span.parent_id for span in recording.calls] == [invoked["alice"], invoked["bob"]]
    assert_exact(recording, server.log)


@TRACED
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@feature("multi-agent")
async def test_an_agent_as_a_tool(server: ScriptedModelServer, model: Any, config: Any, stream: bool) -> None:
    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return tool_call("ask_inner", {"input": "help"})
        return "done"

    server.reply = script
    recording = Recording("nested", server.url)
    with recording.active():
        tool = Agent(name="inner", model=model).as_tool("ask_inner", "helps", run_config=config)
        await run(Agent(name="outer", model=model, tools=[tool]), config, stream)
    assert recording.agents() == ["outer", "inner", "outer"]
    (tool_span,) = recording.named("execute_tool")
    inner = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "inner")
    assert tool_span.attributes[semconv.AGENT_NAME] == "outer" and inner.parent_id == tool_span.span_id
    assert tool_span.attributes[semconv.TOOL_CALL_RESULT] == "done"
    assert_exact(recording, server.log)


@TRACED
@feature("tools")
async def test_parallel_tools_keep_their_own(server: ScriptedModelServer, model: Any, config: Any) -> None:
    calls = [tool_call("rate", {"n": n}, call_id=f"call_{n}")["tool_calls"][0] for n in range(5)]
    replies = iter([{"role": "assistant", "content": None, "tool_calls": calls}, "done"])
    server.reply = lambda body: next(replies)

    async def rate(n: int) -> str:
        """Rate."""
        emit_reward(n, final=False)
        return str(2 * n)

    recording = Recording("parallel", server.url)
    with recording.active():
        await run(Agent(name="solver", model=model, tools=[function_tool(rate)]), config)
    tools = recording.named("execute_tool")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["n"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in tools
    }
    assert found == {f"call_{n}": (n, str(2 * n)) for n in range(5)}
    rewarded = {span.parent_id: span.attributes for span in recording.named(semconv.REWARD_SPAN)}
    assert set(rewarded) == {span.span_id for span in tools}
    assert {a[semconv.AGENT_NAME] for a in rewarded.values()} == {"solver"}


@TRACED
@feature("tools")
async def test_a_tool_that_fails_as_the_sdk_says_it(
    server: ScriptedModelServer, model: Any, config: Any
) -> None:
    def broken() -> str:
        """Break."""
        raise ArithmeticError("secret")

    replies = iter([tool_call("broken", {}), "sorry"])
    server.reply = lambda body: next(replies)
    recording = Recording("broken", server.url)
    with recording.active():
        await run(Agent(name="solver", model=model, tools=[function_tool(broken)]), config)
    (tool,) = recording.named("execute_tool")
    assert tool.status == "error" and tool.status_message
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == server.log[1].body["messages"][-1]["content"]


@TRACED
async def test_a_tool_that_waits_for_a_person_counts_once(
    server: ScriptedModelServer, model: Any, config: Any
) -> None:
    server.reply = lambda body: (
        "42" if body["messages"][-1]["role"] == "tool" else tool_call("add", {"a": 17, "b": 25})
    )
    agent = Agent(name="solver", tools=[function_tool(add, needs_approval=True)], model=model)
    recording = Recording("approval", server.url)
    with recording.active():
        waiting = await Runner.run(agent, "how much?", run_config=config)
        state = waiting.to_state()
        state.approve(waiting.interruptions[0])
        await Runner.run(agent, state, run_config=config)
    tools = [s for s in recording.spans if s.attributes.get(semconv.TOOL_NAME) == "add"]
    assert [s.attributes[semconv.OPERATION_NAME] for s in tools] == [semconv.AWAIT_APPROVAL, "execute_tool"]
    assert [s.attributes.get(semconv.INTERRUPTED) for s in tools] == [True, None]
    assert tools[1].attributes[semconv.TOOL_CALL_RESULT] == "42"
    assert_exact(recording, server.log)


@TRACED
async def test_an_agent_that_fails_is_an_error(server: ScriptedModelServer, model: Any, config: Any) -> None:
    server.reply = lambda body: Reply(status=400, message="no")
    recording = Recording("failed", server.url)
    with recording.active(), pytest.raises(Exception, match="no"):
        await run(Agent(name="solver", model=model), config)
    assert [span.status for span in recording.calls] == ["error"]
    assert len(recording.named("invoke_agent")) == 1
    assert not trace.get_current_span().get_span_context().is_valid and caller_tags() == {}


@TRACED
async def test_a_guardrail_with_an_agent_of_its_own(
    server: ScriptedModelServer, model: Any, config: Any
) -> None:
    async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        answer = await Runner.run(Agent(name="judge", model=model), given, run_config=config)
        return GuardrailFunctionOutput(output_info=answer.final_output, tripwire_triggered=False)

    recording = Recording("guard", server.url)
    with recording.active():
        guardrail = InputGuardrail(guardrail_function=check, name="polite", run_in_parallel=False)
        await run(Agent(name="solver", model=model, input_guardrails=[guardrail]), config)
    assert recording.agents() == ["judge", "solver"]
    (guard,) = recording.named("guardrail")
    judge = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "judge")
    assert guard.name == "guardrail polite" and judge.parent_id == guard.span_id


@TRACED
@feature("structured")
async def test_structured_output(server: ScriptedModelServer, model: Any, config: Any) -> None:
    class Sum(BaseModel):
        total: int

    server.reply = lambda body: '{"total": 42}'
    recording = Recording("typed", server.url)
    with recording.active():
        result = await run(Agent(name="solver", model=model, output_type=Sum), config)
        streamed = await run(Agent(name="solver", model=model, output_type=Sum), config, stream=True)
    assert result.final_output == streamed.final_output == Sum(total=42)
    assert_exact(recording, server.log)


@TRACED
@feature("stream")
async def test_a_stream_given_up_leaves_nothing_behind(
    server: ScriptedModelServer, model: Any, config: Any
) -> None:
    server.reply = lambda body: "one two three four five six"
    recording = Recording("given-up", server.url)
    with recording.active():
        result = Runner.run_streamed(Agent(name="solver", model=model), "go", run_config=config)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                break
        result.cancel()
        await asyncio.wait([result.run_loop_task])
        assert caller_tags() == {}
        await run(Agent(name="after", model=model), config)
    assert recording.agents() == ["solver", "after"]


async def test_tags_of_the_users_win(server: ScriptedModelServer, model: Any) -> None:
    recording = Recording("tagged", server.url)
    with recording.active(), tagged(agent="mine"):
        await run(Agent(name="solver", model=model), None)
    assert recording.agents() == ["mine"]


@TRACED
async def test_a_mark_names_no_agent_that_is_called_as_a_tool(
    server: ScriptedModelServer, model: Any, client: Any, config: Any
) -> None:
    replies = iter([tool_call("help", {"input": "x"}), "helped", "done", "alone"])
    server.reply = lambda body: next(replies)

    @agl.agent(name="hero", methods=["act"], select="hero")
    class Mine(Agent):  # type: ignore[type-arg]
        async def act(self) -> Any:
            answer = await run(self, config)
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
            return answer

    inner = Agent(name="inner", model=model)
    tool = inner.as_tool("help", "helps")
    recording = Recording("marked", server.url)
    with recording.active():
        await Mine(name="outer", model=model, tools=[tool]).act()
    assert recording.agents() == ["hero", "inner", "hero", "hero"]
    left_out = [semconv.HEADER_SELECTED in exchange.headers for exchange in server.log]
    assert left_out == [False, True, False, False]
    assert_exact(recording, server.log)


async def test_a_call_of_a_tools_own_is_the_agents(
    server: ScriptedModelServer, model: Any, client: Any
) -> None:
    async def ask() -> str:
        """Ask."""
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
        return "asked"

    replies = iter([tool_call("ask", {}), "inside", "done", "after"])
    server.reply = lambda body: next(replies)
    recording = Recording("inside", server.url)
    with recording.active():
        await run(Agent(name="solver", model=model, tools=[function_tool(ask)]), None)
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
    assert recording.agents() == ["solver", "solver", "solver", None]
    (tool,) = recording.named("execute_tool")
    assert recording.calls[1].parent_id == tool.span_id


@TRACED
async def test_agents_are_known_without_opentelemetry(
    server: ScriptedModelServer, model: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    server.reply = lambda body: tool_call("transfer_to_bob", {}) if body.get("tools") else "thanks"
    recording = Recording("dark", server.url)
    with recording.active():
        await run(Agent(name="alice", model=model, handoffs=[Agent(name="bob", model=model)]), config)
    assert recording.agents() == ["alice", "bob"]
    assert [span.name for span in recording.spans] == [semconv.CALL_SPAN] * 2


async def test_sensitive_data_stays_out(server: ScriptedModelServer, model: Any) -> None:
    replies = iter([tool_call("add", {"a": 1, "b": 2}), "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("sensitive", server.url)
    with recording.active():
        config = RunConfig(trace_include_sensitive_data=False)
        await run(Agent(name="solver", model=model, tools=[function_tool(add)]), config)
    (tool,) = recording.named("execute_tool")
    assert semconv.TOOL_CALL_ID in tool.attributes
    assert not {semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT} & set(tool.attributes)


# ------------------------------------------------------------------------------------------ the SDK's tracing
async def test_the_users_processors_stay_and_ours_beside_them(
    server: ScriptedModelServer, model: Any
) -> None:
    before, after = Seen(), Seen()
    agents.add_trace_processor(before)
    recording = Recording("beside", server.url)
    with recording.active():
        await run(Agent(name="solver", model=model), None)
        agents.set_trace_processors([after])
        await run(Agent(name="solver", model=model), None)
    assert {"agent", "generation"} <= set(before.kinds) == set(after.kinds)
    assert len(recording.named("invoke_agent")) == 2
    processors = get_trace_provider()._multi_processor._processors
    assert list(processors) == [after, BRIDGE]
    OpenAIAgentsInstrumentor().uninstrument()
    assert list(get_trace_provider()._multi_processor._processors) == [after]
    OpenAIAgentsInstrumentor().instrument()


async def test_disabled_tracing_stays_disabled_for_others(server: ScriptedModelServer, model: Any) -> None:
    users = Seen()
    agents.add_trace_processor(users)

    def traced_inside() -> str:
        """Trace."""
        with agents.custom_span("mine") as span:
            assert isinstance(span, NoOpSpan)
        return "traced"

    replies = iter([tool_call("traced_inside", {}), "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("private", server.url)
    with recording.active():
        agent = Agent(name="solver", model=model, tools=[function_tool(traced_inside)])
        await run(agent, RunConfig(tracing_disabled=True))
    assert users.kinds == [] and len(recording.named("execute_tool")) == 1
    assert recording.named("execute_tool")[0].attributes[semconv.TOOL_CALL_RESULT] == "traced"


async def test_no_attempts_key_goes_to_the_vendor(client: AsyncOpenAI, monkeypatch: Any) -> None:
    sent: list[str] = []
    exporter = BackendSpanExporter(api_key="agl-of-an-attempt")
    monkeypatch.setattr(exporter._client, "post", lambda **request: sent.append(str(request)))
    with agents.trace("run") as traced:
        pass
    exporter.export([traced])
    assert sent == [] and COUNTS.snapshot()[WITHHELD] == 1
    theirs = BackendSpanExporter(api_key="sk-theirs")
    monkeypatch.setattr(theirs._client, "post", lambda **request: sent.append(str(request)) or Answered())
    theirs.export([traced])
    assert len(sent) == 1 and "agl-" not in sent[0]
    exporter.close(), theirs.close()


class Answered:
    status_code = 200


# ------------------------------------------------------------------------------------------ the Responses API
@TRACED
async def test_models_by_name_keep_the_sdks_default(
    server: ScriptedModelServer, client: AsyncOpenAI, config: Any
) -> None:
    assert get_use_responses_by_default()
    agents.set_default_openai_client(client, use_for_tracing=False)
    recording = Recording("named", server.url)
    with recording.active():
        await run(Agent(name="solver", model="policy"), config)
    assert [exchange.path for exchange in server.log] == ["/responses"]
    assert_exact(recording, server.log)
    assert recording.agents() == ["solver"]


async def test_the_users_choice_of_api_is_left(server: ScriptedModelServer) -> None:
    agents.set_default_openai_api("chat_completions")
    OpenAIAgentsInstrumentor().uninstrument()
    OpenAIAgentsInstrumentor().instrument()
    assert not get_use_responses_by_default()
    agents.set_default_openai_api("responses")


async def test_what_responses_cannot_do_is_said(server: ScriptedModelServer, client: AsyncOpenAI) -> None:
    agent = Agent(name="solver", model=OpenAIResponsesModel("policy", client), tools=[WebSearchTool()])
    with Recording("hosted", server.url).active(), pytest.raises(Exception, match="function tools only"):
        await run(agent, None)


@TRACED
async def test_handoffs_over_responses(server: ScriptedModelServer, client: AsyncOpenAI, config: Any) -> None:
    model = OpenAIResponsesModel("policy", client)
    expert = Agent(name="expert", model=model)
    server.reply = lambda body: (
        tool_call("transfer_to_expert", "{}") if len(server.log) == 1 else "the expert speaks"
    )
    recording = Recording("handoff", server.url)
    with recording.active():
        await run(Agent(name="triage", model=model, handoffs=[expert]), config)
    assert recording.agents() == ["triage", "expert"]
    assert_exact(recording, server.log)


async def test_asked_for_logprobs_are_the_users_too(server: ScriptedModelServer, model: Any) -> None:
    recording = Recording("logprobs", server.url)
    with recording.active():
        agent = Agent(
            name="solver", model=model, model_settings=ModelSettings(top_logprobs=1, temperature=0.5)
        )
        await run(agent, None)
    assert server.log[0].body["top_logprobs"] == 1
    assert_exact(recording, server.log)


# ------------------------------------------------------------------------------------------------ the adapter
def test_entry_methods() -> None:
    class Mine(Agent):
        pass

    assert entry_methods(Mine) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("openai-agents", "agents.tracing")
    assert spec.instrumentor() is OpenAIAgentsInstrumentor()
    assert spec.entry_methods is not None and spec.entry_methods(Agent) == ()
    assert list(OpenAIAgentsInstrumentor().instrumentation_dependencies()) == [spec.requires]


def test_nothing_is_left_in_the_registries() -> None:
    OpenAIAgentsInstrumentor().uninstrument()
    assert not BRIDGE.active
    assert BRIDGE not in get_trace_provider()._multi_processor._processors
    OpenAIAgentsInstrumentor().instrument()


async def _previous(agent: Agent[Any], client: AsyncOpenAI) -> None:
    first = await Runner.run(agent, "one")
    await Runner.run(agent, "two", previous_response_id=first.last_response_id)


async def _automatic(agent: Agent[Any], client: AsyncOpenAI) -> None:
    first = await Runner.run(agent, "one", auto_previous_response_id=True)
    more = {"previous_response_id": first.last_response_id, "auto_previous_response_id": True}
    result = Runner.run_streamed(agent, "two", **more)
    async for _ in result.stream_events():
        pass


async def _conversation(agent: Agent[Any], client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    for text in ("one", "two"):
        await Runner.run(agent, text, conversation_id=conversation.id)


async def _session(agent: Agent[Any], client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    for text in ("one", "two"):
        await Runner.run(agent, text, session=session)
    assert len(await session.get_items()) == 8 and await session.pop_item()
    assert len(await session.get_items()) == 7
    await session.clear_session()


@pytest.mark.parametrize("go", [_previous, _automatic, _conversation, _session])
async def test_what_the_server_remembers_is_exact_and_one_row(go: Any, tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> Any:
        asked = body["messages"][-1]
        call = tool_call("add", '{"a":  1, "b": 1}', f"c{len(engine.log)}")
        return call if asked["role"] == "user" else "it is 2"

    async with ScriptedModelServer(reply) as engine, leased_attempt(engine, tmp_path) as leased:
        with leased.active():
            async with AsyncOpenAI(base_url=leased.context.gateway, api_key=leased.context.key) as client:
                model = OpenAIResponsesModel("policy", client)
                await go(Agent(name="solver", model=model, tools=[function_tool(add)]), client)
        record, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 4
    assert_one_row(record, engine.log)
