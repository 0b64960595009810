"""TinyAgents keeps the adapter contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import openai._base_client as sdk
from agl_testing.contract import SOLVER, TEAM, AdapterContract
from openai import AsyncOpenAI
from tinyagents import Agent, Team

from agl_tinyagents.instrumentor import TinyAgentsInstrumentor


class TestTinyAgents(AdapterContract):
    def instrumentor(self) -> Any:
        return TinyAgentsInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return AsyncOpenAI(base_url=url, api_key=key, max_retries=3)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        agent = Agent(SOLVER, client, f"You are {SOLVER}.", tools=[tool])
        return "".join([text async for text in agent.stream(task)]) if stream else await agent.run(task)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        await Team([Agent(name, client, f"You are {name}.") for name in TEAM]).run(task, stream)

    async def close(self, client: Any) -> None:
        await client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (Agent, "run"),
            (Agent, "stream"),
            (Agent, "_call_tool"),
        ]
