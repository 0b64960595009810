"""smolagents keeps the adapter contract: it blocks, and its agents finish by the tool ``final_answer``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("smolagents")

from agl_testing import tool_call
from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM, TOOL
from agl_testing.template import text_of
from contract.adapter import AdapterContract
from smolagents import LogLevel, MultiStepAgent, OpenAIServerModel, Tool, ToolCallingAgent

from agl_smolagents.instrumentor import SmolagentsInstrumentor


def as_tool(function: Callable[..., Any]) -> Tool:
    """The contract's tool; the decorator ``tool`` wants a longer docstring."""

    class Add(Tool):
        name, description = function.__name__, str(function.__doc__)
        inputs = {key: {"type": "integer", "description": "A number."} for key in ("a", "b")}
        output_type = "integer"

        def forward(self, a: int, b: int) -> int:
            return function(a, b)

    return Add()


def agent_of(model: Any, name: str, stream: bool, *tools: Tool) -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=list(tools),
        model=model,
        name=name,
        instructions=f"You are {name}.",
        stream_outputs=stream,
        verbosity_level=LogLevel.OFF,
    )


class TestSmolagents(AdapterContract):
    # its agents go on until they call final_answer, which that engine's policy of random weights never does
    test_on_the_local_engine_every_call_is_exact = None

    def instrumentor(self) -> Any:
        return SmolagentsInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return OpenAIServerModel("policy", api_base=url, api_key=key, client_kwargs={"max_retries": 3})

    def say(self, body: dict[str, Any]) -> Any:
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        last = text_of(body["messages"][-1]["content"])
        if TOOL in offered and not ("Observation:" in last or "Error:" in last):
            return tool_call(TOOL, ARGUMENTS)
        return self.answer(f"{len(body['messages'])} · {last[-60:]}")

    def answer(self, text: str) -> Any:
        return tool_call("final_answer", {"answer": text})

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return await asyncio.to_thread(self.tool_agent_sync, client, task, tool, stream)

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return str(agent_of(client, SOLVER, stream, as_tool(tool)).run(task))

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            task += "\n" + str(await asyncio.to_thread(agent_of(client, name, stream).run, task))

    async def several(self, client: Any, task: str, n: int) -> bool:
        await asyncio.to_thread(client.generate, [{"role": "user", "content": task}], n=n)
        return True

    def arguments(self, stream: bool) -> str:
        return json.dumps(json.loads(ARGUMENTS))

    async def close(self, client: Any) -> None:
        client.client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (MultiStepAgent, "run"),
            (ToolCallingAgent, "process_tool_calls"),
            (ToolCallingAgent, "execute_tool_call"),
            (Tool, "__call__"),
        ]
