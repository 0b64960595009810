"""Programs of ``autogen_core`` alone: agents that handle messages, named by their types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import (
    AgentId,
    CancellationToken,
    ClosureAgent,
    ClosureContext,
    DefaultSubscription,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.delivery import IGNORED_SCOPES
from agl_autogen.entries import core_entry_methods
from agl_autogen.instrumentor import PLUMBING, AutoGenCoreInstrumentor, AutoGenInstrumentor
from agl_autogen.plugin import agl_adapters

INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


@dataclass
class Question:
    """A message."""

    text: str


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    AutoGenCoreInstrumentor().instrument(raise_exception_on_conflict=True)
    yield
    AutoGenCoreInstrumentor().uninstrument()


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


class Writer(RoutedAgent):
    """Asks the model, then a critic."""

    def __init__(self, client: Any, critic: str | None = None) -> None:
        super().__init__("writes")
        self.client, self.critic = client, critic

    @message_handler
    async def on_question(self, message: Question, context: MessageContext) -> Question:
        answer = await self.client.create([UserMessage(content=message.text, source="user")])
        if self.critic is None:
            return Question(str(answer.content))
        await self.send_message(Question(str(answer.content)), AgentId(self.critic, "default"))
        answer = await self.client.create([UserMessage(content="again", source="user")])
        return Question(str(answer.content))


async def asked(runtime: SingleThreadedAgentRuntime, name: str, text: str = "hi") -> Any:
    runtime.start()
    answer = await runtime.send_message(Question(text), AgentId(name, "default"))
    await runtime.stop_when_idle()
    return answer


@feature("multi-agent")
async def test_agents_are_named_by_their_types(server: ScriptedModelServer, client: Any) -> None:
    recording = Recording("handlers", server.url)
    with recording.active():
        runtime = SingleThreadedAgentRuntime()
        await Writer.register(runtime, "critic", lambda: Writer(client))
        await Writer.register(runtime, "writer", lambda: Writer(client, "critic"))
        await asked(runtime, "writer")
    assert recording.agents() == ["writer", "critic", "writer"]
    assert_exact(recording, server.log)
    assert not [span for span in recording.spans if "process" in span.name or "send" in span.name]


@feature("multi-agent")
async def test_agents_of_one_type_have_their_keys_as_a_tag(server: ScriptedModelServer, client: Any) -> None:
    recording = Recording("keys", server.url)
    with recording.active():
        runtime = SingleThreadedAgentRuntime()
        await Writer.register(runtime, "writer", lambda: Writer(client))
        runtime.start()
        for key in ("alice", "bob", "default"):
            await runtime.send_message(Question("hi"), AgentId("writer", key))
        await runtime.stop_when_idle()
    assert recording.agents() == ["writer"] * 3
    keys = [span.attributes.get(semconv.TAG_PREFIX + "key") for span in recording.calls]
    assert keys == ["alice", "bob", None]


@feature("multi-agent")
async def test_published_messages_and_closures(server: ScriptedModelServer, client: Any) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()

    async def judge(context: ClosureContext, message: Question, _: MessageContext) -> None:
        await client.create([UserMessage(content="good?", source="user")])
        said.put_nowait(message.text)

    recording = Recording("published", server.url)
    with recording.active():
        runtime = SingleThreadedAgentRuntime()
        await ClosureAgent.register_closure(
            runtime, "judge", judge, subscriptions=lambda: [DefaultSubscription()]
        )
        runtime.start()
        await runtime.publish_message(Question("a poem"), DefaultTopicId())
        await runtime.stop_when_idle()
    assert said.get_nowait() == "a poem" and recording.agents() == ["judge"]
    assert_exact(recording, server.log)


@feature("tools")
async def test_tools_have_their_spans(server: ScriptedModelServer, client: Any) -> None:
    server.reply = lambda body: tool_call("add", {"a": 1, "b": 2})
    tool = FunctionTool(add, description="Add.", name="add")

    class Calculator(RoutedAgent):
        @message_handler
        async def on_question(self, message: Question, context: MessageContext) -> Question:
            answer = await client.create([UserMessage(content="1 + 2", source="user")], tools=[tool])
            (call,) = answer.content
            result = await tool.run_json(json.loads(call.arguments), CancellationToken(), call_id=call.id)
            return Question(tool.return_value_as_string(result))

    recording = Recording("tools", server.url)
    with recording.active():
        runtime = SingleThreadedAgentRuntime()
        await Calculator.register(runtime, "calculator", lambda: Calculator("adds"))
        assert (await asked(runtime, "calculator")).text == "3"
    (span,) = recording.named("execute_tool")
    assert span.attributes[semconv.TOOL_NAME] == "add"
    assert recording.agents() == ["calculator"]


async def test_an_agentchat_agent_inside_keeps_its_name(server: ScriptedModelServer, client: Any) -> None:
    class Desk(RoutedAgent):
        @message_handler
        async def on_question(self, message: Question, context: MessageContext) -> Question:
            done = await AssistantAgent("clerk", client).run(task=message.text)
            await client.create([UserMessage(content="signed?", source="user")])
            return Question(done.messages[-1].to_text())

    recording = Recording("inside", server.url)
    with recording.active():
        runtime = SingleThreadedAgentRuntime()
        await Desk.register(runtime, "desk", lambda: Desk("answers"))
        await asked(runtime, "desk")
    assert recording.agents() == ["clerk", "desk"]


async def test_both_adapters_name_a_teams_members_once(server: ScriptedModelServer, client: Any) -> None:
    AutoGenInstrumentor().instrument()
    try:
        recording = Recording("both", server.url)
        with recording.active():
            team = RoundRobinGroupChat(
                [AssistantAgent("writer", client)], termination_condition=MaxMessageTermination(2)
            )
            await team.run(task="a poem")
        assert recording.agents() == ["writer"]
        assert [span.attributes["agl.tag.team"] for span in recording.calls] == ["RoundRobinGroupChat"]
    finally:
        AutoGenInstrumentor().uninstrument()
    assert set(PLUMBING) <= IGNORED_SCOPES
    AutoGenCoreInstrumentor().uninstrument()
    assert not set(PLUMBING) & IGNORED_SCOPES
    AutoGenCoreInstrumentor().instrument()


async def test_a_marked_class(server: ScriptedModelServer, client: Any) -> None:
    @agl.agent(name="mine", methods=core_entry_methods(Writer))
    class Mine(Writer):
        """A user's agent."""

    recording = Recording("marked", server.url)
    with recording.active():
        runtime = SingleThreadedAgentRuntime()
        await Mine.register(runtime, "theirs", lambda: Mine(client))
        await asked(runtime, "theirs")
    assert recording.agents() == ["mine"]


def test_the_plugin() -> None:
    _, spec = agl_adapters()
    assert (spec.name, spec.framework) == ("autogen-core", "autogen_core")
    assert spec.instrumentor() is AutoGenCoreInstrumentor()
    assert core_entry_methods(Writer) == ("on_message_impl",) and core_entry_methods(dict) == ()
    assert list(AutoGenCoreInstrumentor().instrumentation_dependencies()) == [spec.requires]
