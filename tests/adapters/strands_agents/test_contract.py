"""Strands Agents keeps the adapter contract."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("strands")

from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM
from contract.adapter import AdapterContract
from openai import AsyncOpenAI
from pydantic import BaseModel
from strands import Agent, tool as as_tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models.openai import OpenAIModel
from strands.tools.executors._executor import ToolExecutor

from agl_strands_agents.instrumentor import StrandsInstrumentor


def agent_of(model: Any, name: str, stream: bool, *tools: Any) -> Agent:
    model.update_config(stream=stream)
    return Agent(
        model=model,
        name=name,
        system_prompt=f"You are {name}.",
        tools=list(tools),
        callback_handler=None,
        conversation_manager=NullConversationManager(),  # the default one tries a shorter prompt
        retry_strategy=None,  # the framework's own, above the client's
    )


class TestStrands(AdapterContract):
    def instrumentor(self) -> Any:
        return StrandsInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return AsyncOpenAI(base_url=url, api_key=key, max_retries=3)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        model = OpenAIModel(client, model_id="policy")
        return str(await agent_of(model, SOLVER, stream, as_tool(tool)).invoke_async(task))

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            model = OpenAIModel(client, model_id="policy")
            task = str(await agent_of(model, name, stream).invoke_async(task))

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        # the framework's thread has a loop of its own: its model makes a client there
        given = {"base_url": str(client.base_url), "api_key": client.api_key, "max_retries": 3}
        agent = agent_of(OpenAIModel(client_args=given, model_id="policy"), SOLVER, stream, as_tool(tool))
        return str(agent(task))

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent = agent_of(OpenAIModel(client, model_id="policy"), SOLVER, stream)
        return (await agent.invoke_async(task, structured_output_model=schema)).structured_output

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        class Value(BaseModel):
            """The answer."""

            value: int

        def made(stream: bool = False) -> Agent:
            return agent_of(OpenAIModel(client, model_id="policy"), SOLVER, stream)

        async def streamed(task: str) -> None:
            async for _ in made(True).stream_async(task):
                pass

        async def structured(task: str) -> None:
            with pytest.warns(DeprecationWarning):
                assert (await made().structured_output_async(Value, task)).value == 42

        return {
            "invoke_async": lambda task: made().invoke_async(task),
            "stream_async": streamed,
            "structured_output_async": structured,
        }

    async def several(self, client: Any, task: str, n: int) -> bool:
        model = OpenAIModel(client, model_id="policy", params={"n": n})
        await agent_of(model, SOLVER, False).invoke_async(task)
        return True

    def arguments(self, stream: bool) -> str:
        return json.dumps(json.loads(ARGUMENTS))

    async def close(self, client: Any) -> None:
        await client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (Agent, "stream_async"),
            (Agent, "structured_output_async"),
            (ToolExecutor, "_stream"),
        ]
