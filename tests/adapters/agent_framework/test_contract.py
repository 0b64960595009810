"""Microsoft Agent Framework keeps the adapter contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("agent_framework_openai", reason="Agent Framework is not installed")

import agent_framework._tools as invocation
import openai._base_client as sdk
from agent_framework import (
    Agent,
    AgentMiddlewareLayer,
    AgentResponse,
    Executor,
    Message,
    RawAgent,
    WorkflowBuilder,
)
from agent_framework.openai import OpenAIChatCompletionClient
from agl_testing.contract.script import SOLVER, TEAM
from contract.adapter import AdapterContract
from openai import AsyncOpenAI

from agl_agent_framework.instrumentor import AgentFrameworkInstrumentor


class TestAgentFramework(AdapterContract):
    def instrumentor(self) -> Any:
        return AgentFrameworkInstrumentor()

    def client(self, url: str, key: str) -> Any:
        openai = AsyncOpenAI(base_url=url, api_key=key, max_retries=3)
        client = OpenAIChatCompletionClient("policy", async_client=openai)
        client.function_invocation_configuration["include_detailed_errors"] = True
        return client

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        agent = Agent(client, f"You are {SOLVER}.", name=SOLVER, tools=[tool])
        if not stream:
            return (await agent.run(task)).text
        updates = [update async for update in agent.run(task, stream=True)]
        return AgentResponse.from_updates(updates).text

    async def team(self, client: Any, task: str, stream: bool) -> None:
        writer, critic = (Agent(client, f"You are {name}.", name=name) for name in TEAM)
        workflow = WorkflowBuilder(start_executor=writer).add_edge(writer, critic).build()
        if stream:
            async for _ in workflow.run(task, stream=True):
                pass
        else:
            await workflow.run(task)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent, options = Agent(client, "Solve.", name=SOLVER), {"response_format": schema}
        if not stream:
            return (await agent.run(task, options=options)).value
        return (await agent.run(task, stream=True, options=options).get_final_response()).value

    async def several(self, client: Any, task: str, n: int) -> bool:
        await client.get_response([Message("user", [task])], options={"n": n})
        return True

    async def close(self, client: Any) -> None:
        await client.client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (AgentMiddlewareLayer, "run"),
            (RawAgent, "run"),
            (Executor, "execute"),
            (invocation, "_auto_invoke_function"),
        ]
