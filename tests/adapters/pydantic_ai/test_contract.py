"""Pydantic AI keeps the adapter contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("pydantic_ai")

from agl_testing.contract.script import SOLVER, TEAM
from contract.adapter import AdapterContract
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelRetry, NativeOutput
from pydantic_ai.capabilities import Hooks
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from agl_pydantic_ai.instrumentor import PydanticAIInstrumentor


async def told(ctx: Any, *, error: Exception, **_: Any) -> Any:
    """A tool's exception ends a run; the contract's agent tells it to the model instead."""
    raise ModelRetry(str(error)) from error


def solver(model: Any, tool: Callable[..., Any]) -> Agent[None, str]:
    """The contract's tool agent."""
    hooks = Hooks(tool_execute_error=told)
    return Agent(model, name=SOLVER, instructions=f"You are {SOLVER}.", tools=[tool], capabilities=[hooks])


class TestPydanticAI(AdapterContract):
    def instrumentor(self) -> Any:
        return PydanticAIInstrumentor()

    def client(self, url: str, key: str) -> Any:
        sdk_client = AsyncOpenAI(base_url=url, api_key=key, max_retries=3)
        return OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=sdk_client))

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        agent = solver(client, tool)
        if not stream:
            return (await agent.run(task)).output
        async with agent.run_stream(task) as answer:
            return "".join([text async for text in answer.stream_text(delta=True)])

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            agent = Agent(client, name=name, instructions=f"You are {name}.")
            if stream:
                async with agent.run_stream(task) as answer:
                    task += "\n" + await answer.get_output()
            else:
                task += "\n" + (await agent.run(task)).output

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str | None:
        loop = asyncio.new_event_loop()  # the framework keeps a thread's loop open, and would one of its own
        asyncio.set_event_loop(loop)
        agent = solver(client, tool)
        try:
            if not stream:
                return agent.run_sync(task).output
            with agent.run_stream_sync(task) as answer:
                return "".join(answer.stream_text(delta=True))
        finally:
            loop.run_until_complete(self.close(client))
            asyncio.set_event_loop(None)
            loop.close()

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent = Agent(
            client, name=SOLVER, instructions=f"You are {SOLVER}.", output_type=NativeOutput(schema)
        )
        if not stream:
            return (await agent.run(task)).output
        async with agent.run_stream(task) as answer:
            return await answer.get_output()

    async def several(self, client: Any, task: str, n: int) -> bool:
        settings = OpenAIChatModelSettings(extra_body={"n": n})
        await Agent(client, name=SOLVER, model_settings=settings).run(task)
        return True

    async def close(self, client: Any) -> None:
        await client.client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (Agent, "iter"),
        ]
