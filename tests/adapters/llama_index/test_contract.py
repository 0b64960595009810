"""LlamaIndex keeps the adapter contract, by function agents and workflows of agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("llama_index.core")

from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM
from contract.adapter import AdapterContract
from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI

from agl_llama_index.instrumentor import LlamaIndexInstrumentor
from agl_llama_index.turns import STEPS

pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own, of pydantic


def agent_of(model: Any, name: str, stream: bool, *tools: Any, **more: Any) -> FunctionAgent:
    return FunctionAgent(
        name=name,
        description=f"{name} works.",
        llm=model,
        tools=list(tools),
        system_prompt=f"You are {name}.",
        streaming=stream,
        **more,
    )


class solver(Workflow):  # its class is its name
    """A workflow of the user's own."""

    @step
    async def think(self, event: StartEvent) -> StopEvent:
        """Ask the model."""
        message = ChatMessage(role="user", content=str(event.task))
        return StopEvent(result=str(await event.model.achat([message])))


async def said(agent: Any, task: str) -> str:
    """Run an agent; a run whose reader is cancelled goes on by itself, and is cancelled here."""
    handler = agent.run(user_msg=task)
    try:
        return str(await handler)
    except asyncio.CancelledError:
        await handler.cancel_run()
        raise


class TestLlamaIndex(AdapterContract):
    def instrumentor(self) -> Any:
        return LlamaIndexInstrumentor()

    def client(self, url: str, key: str) -> Any:
        client = AsyncOpenAI(base_url=url, api_key=key, max_retries=3)
        return OpenAILike(
            model="policy",
            api_key=key,
            api_base=url,
            async_openai_client=client,
            temperature=1.0,
            max_retries=0,  # the framework's own, above the client's
            is_chat_model=True,
            is_function_calling_model=True,
        )

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return await said(agent_of(client, SOLVER, stream, FunctionTool.from_defaults(tool)), task)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            members = [agent_of(client, name, stream)]
            task = await said(AgentWorkflow(agents=members, root_agent=name), task)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        return (
            await agent_of(client, SOLVER, stream, output_cls=schema).run(user_msg=task)
        ).structured_response

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        async def streamed(task: str) -> None:
            handler = agent_of(client, SOLVER, True).run(user_msg=task)
            async for _ in handler.stream_events():
                pass
            await handler

        return {
            "run of an agent": lambda task: said(agent_of(client, SOLVER, False), task),
            "run of a workflow of agents": lambda task: said(
                AgentWorkflow(agents=[agent_of(client, SOLVER, False)], root_agent=SOLVER), task
            ),
            "stream_events": streamed,
            "run of a workflow": lambda task: solver(timeout=60).run(task=task, model=client),
        }

    async def several(self, client: Any, task: str, n: int) -> bool:
        await client.achat([ChatMessage(role="user", content=task)], n=n)
        return True

    def arguments(self, stream: bool) -> str:
        return json.dumps(json.loads(ARGUMENTS))

    async def close(self, client: Any) -> None:
        await client._aclient.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (Workflow, "run"),
            (Workflow, "__init__"),
            (BaseWorkflowAgent, "run"),
            (BaseWorkflowAgent, "call_tool"),
            (AgentWorkflow, "run"),
            (AgentWorkflow, "call_tool"),
            (AgentWorkflow, "run_agent_step"),
            *((AgentWorkflow, name) for name in STEPS),
        ]
