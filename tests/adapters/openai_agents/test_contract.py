"""The OpenAI Agents SDK keeps the adapter contract, with its tracing on and off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("agents.tracing")

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.tool_context import ToolContext
from agents.tracing.processors import BackendSpanExporter
from agents.tracing.provider import DefaultTraceProvider
from agents.tracing.spans import NoOpSpan
from agl_testing.contract.script import SOLVER, TEAM
from contract.adapter import AdapterContract
from openai import AsyncOpenAI

from agl_openai_agents.instrumentor import OpenAIAgentsInstrumentor
from agl_openai_agents.untraced import EXPORT


class OpenAIAgents(AdapterContract):
    """Agents of the SDK on one chat completions model."""

    run_config: RunConfig | None = None

    def instrumentor(self) -> Any:
        return OpenAIAgentsInstrumentor()

    def client(self, url: str, key: str) -> Any:
        client = AsyncOpenAI(base_url=url, api_key=key, max_retries=3)
        return OpenAIChatCompletionsModel("policy", client)

    async def run(self, agent: Agent, task: str, stream: bool) -> Any:
        if not stream:
            return (await Runner.run(agent, task, run_config=self.run_config)).final_output
        result = Runner.run_streamed(agent, task, run_config=self.run_config)
        async for _ in result.stream_events():
            pass
        return result.final_output

    def solver(self, client: Any, tool: Callable[..., Any]) -> Agent:
        made = function_tool(tool, failure_error_function=lambda context, error: f"it failed: {error}")
        return Agent(name=SOLVER, instructions=f"You are {SOLVER}.", model=client, tools=[made])

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return str(await self.run(self.solver(client, tool), task, stream))

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        answer = Runner.run_sync(self.solver(client, tool), task, run_config=self.run_config).final_output
        loop = asyncio.get_event_loop_policy().get_event_loop()  # the SDK leaves it open for its next run
        loop.run_until_complete(self.close(client))
        loop.close()
        asyncio.set_event_loop(None)
        return str(answer)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            agent = Agent(name=name, instructions=f"You are {name}.", model=client)
            task = await self.run(agent, task, stream) + task

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        return await self.run(Agent(name=SOLVER, model=client, output_type=schema), task, stream)

    async def several(self, client: Any, task: str, n: int) -> bool:
        settings = ModelSettings(extra_args={"n": n})
        await self.run(Agent(name=SOLVER, model=client, model_settings=settings), task, stream=False)
        return True

    async def close(self, client: Any) -> None:
        await client._client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (NoOpSpan, "start"),
            (NoOpSpan, "finish"),
            (NoOpSpan, "set_error"),
            (DefaultTraceProvider, "set_processors"),
            (BackendSpanExporter, EXPORT),
            (ToolContext, "from_agent_context"),
        ]


class TestTraced(OpenAIAgents):
    """With tracing on, and the vendor's exporter taken out, as a user would."""

    def prepare(self) -> None:
        set_trace_processors([])


class TestResponses(TestTraced):
    """The same over the Responses API, the SDK's default."""

    test_sixteen_agents_over_four_processes = None

    def client(self, url: str, key: str) -> Any:
        return OpenAIResponsesModel("policy", AsyncOpenAI(base_url=url, api_key=key, max_retries=3))

    async def several(self, client: Any, task: str, n: int) -> bool:
        return False  # the API has no n


class TestDisabledForARun(OpenAIAgents):
    """``RunConfig(tracing_disabled=True)``."""

    test_sixteen_agents_over_four_processes = None  # one way of tracing is enough for that

    run_config = RunConfig(tracing_disabled=True)


class TestDisabledEverywhere(OpenAIAgents):
    """``set_tracing_disabled(True)``."""

    test_sixteen_agents_over_four_processes = None

    @pytest.fixture(autouse=True)
    def tracing(self) -> Iterator[None]:
        set_tracing_disabled(True)
        yield
        set_tracing_disabled(False)
