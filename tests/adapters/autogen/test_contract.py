"""AutoGen keeps the adapter contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest
from agl_testing.contract.script import SOLVER, TEAM
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import BaseGroupChat, RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core._telemetry import TraceHelper
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from contract.adapter import AdapterContract

from agl_autogen.instrumentor import AutoGenInstrumentor

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": True,
}


async def read(stream: Any) -> None:
    """Read a stream to its end."""
    async for _ in stream:
        pass


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # AutoGen's own, logging a typed answer
class TestAutoGen(AdapterContract):
    def instrumentor(self) -> Any:
        return AutoGenInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return OpenAIChatCompletionClient(
            model="policy", base_url=url, api_key=key, model_info=INFO, max_retries=3
        )

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        agent = AssistantAgent(
            SOLVER,
            client,
            tools=[tool],
            system_message=f"You are {SOLVER}.",
            max_tool_iterations=2,
            model_client_stream=stream,
        )
        result = await agent.run(task=task)
        return result.messages[-1].to_text()

    async def team(self, client: Any, task: str, stream: bool) -> None:
        agents = [
            AssistantAgent(name, client, system_message=f"You are {name}.", model_client_stream=stream)
            for name in TEAM
        ]
        await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)).run(task=task)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent = AssistantAgent(
            SOLVER, client, output_content_type=schema, system_message="Solve.", model_client_stream=stream
        )
        return (await agent.run(task=task)).messages[-1].content

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        class Polite(AssistantAgent):
            """A user's class, which calls the framework's."""

            async def on_messages(self, messages: Any, cancellation_token: Any) -> Any:
                return await super().on_messages(messages, cancellation_token)

        def made(cls: type[AssistantAgent] = AssistantAgent) -> AssistantAgent:
            return cls(SOLVER, client, system_message=f"You are {SOLVER}.")

        def asked(task: str) -> tuple[Any, Any]:
            return [TextMessage(content=task, source="user")], CancellationToken()

        return {
            "run": lambda task: made().run(task=task),
            "run_stream": lambda task: read(made().run_stream(task=task)),
            "on_messages": lambda task: made().on_messages(*asked(task)),
            "on_messages_stream": lambda task: read(made().on_messages_stream(*asked(task))),
            "on_messages of a user's class": lambda task: made(Polite).on_messages(*asked(task)),
            "run of a user's class": lambda task: made(Polite).run(task=task),
        }

    async def several(self, client: Any, task: str, n: int) -> bool:
        await client.create([UserMessage(content=task, source="user")], extra_create_args={"n": n})
        return True

    async def close(self, client: Any) -> None:
        await client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (BaseGroupChat, "__init__"),
            (BaseChatAgent, "__init__"),
            (AssistantAgent, "on_messages"),
            (AssistantAgent, "on_messages_stream"),
            (AssistantAgent, "_execute_tool_call"),
            (TraceHelper, "trace_block"),
        ]
