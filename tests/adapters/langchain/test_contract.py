"""LangChain keeps the adapter contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("langchain")

import openai._base_client as sdk
from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM
from contract.adapter import AdapterContract
from contract.chat_openai import ask, chat_openai, close, finish, given
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, ToolMessage

from agl_langchain.instrumentor import LangChainInstrumentor


class Forgiving(AgentMiddleware):
    """Tells the model that a tool failed, where LangChain would give up."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except Exception as error:
            return self._told(request, error)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except Exception as error:
            return self._told(request, error)

    @staticmethod
    def _told(request: Any, error: Exception) -> ToolMessage:
        return ToolMessage(f"failed: {error}", tool_call_id=request.tool_call["id"], status="error")


def agent(client: Any, name: str, tools: Sequence[Callable[..., Any]] = ()) -> Any:
    prompt = f"You are {name}."
    return create_agent(client, list(tools), system_prompt=prompt, name=name, middleware=[Forgiving()])


class TestLangChain(AdapterContract):
    def instrumentor(self) -> Any:
        return LangChainInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return chat_openai(url, retries=3)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return await ask(agent(client, SOLVER, [tool]), task, stream)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            task = f"{task} · {await ask(agent(client, name), task, stream)}"

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str | None:
        answer = agent(client, SOLVER, [tool]).invoke(given(task))
        client.root_client.close()
        return str(answer["messages"][-1].content)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        made = create_agent(client, response_format=schema, name=SOLVER)
        return (await finish(made, task, stream))["structured_response"]

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        def made() -> Any:
            return agent(client, SOLVER)

        async def streamed(task: str) -> None:
            async for _ in made().astream(given(task)):
                pass

        async def events(task: str) -> None:
            async for _ in made().astream_events(given(task), version="v2"):
                pass

        return {
            "ainvoke": lambda task: made().ainvoke(given(task)),
            "astream": streamed,
            "astream_events": events,
            "abatch": lambda task: made().abatch([given(task)]),
            "invoke": lambda task: asyncio.to_thread(made().invoke, given(task)),
            "stream": lambda task: asyncio.to_thread(lambda: [*made().stream(given(task))]),
            "batch": lambda task: asyncio.to_thread(made().batch, [given(task)]),
        }

    async def several(self, client: Any, task: str, n: int) -> bool:
        found = await client.agenerate([[HumanMessage(task)]], n=n)
        return len(found.generations[0]) == n

    def arguments(self, stream: bool) -> str:
        """LangChain keeps what the text meant, and sends it back re-serialised."""
        return json.dumps(json.loads(ARGUMENTS))

    async def close(self, client: Any) -> None:
        await close(client)

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
        ]
