"""Google ADK keeps the adapter contract, with litellm as its door to the openai SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("google.adk")

from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM
from contract.adapter import AdapterContract
from google.adk.agents import BaseAgent, LlmAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import InMemoryRunner
from google.genai import types
from openai import AsyncOpenAI

from agl_google_adk.instrumentor import GoogleADKInstrumentor
from agl_google_adk.turns import node_class

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, of pydantic


def told(tool: Any, args: Any, tool_context: Any, error: Exception) -> dict[str, Any]:
    """A tool's exception ends a run; the contract's agent tells it to the model instead."""
    return {"error": str(error)}


def agent_of(model: Any, name: str, **more: Any) -> LlmAgent:
    return LlmAgent(name=name, model=model, instruction=f"You are {name}.", **more)


def message(task: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=task)])


async def said(agent: BaseAgent, task: str, stream: bool) -> str:
    """Run an agent in a session of its own; the last whole text."""
    runner = InMemoryRunner(agent, app_name="contract")
    session = await runner.session_service.create_session(app_name="contract", user_id="user")
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    text = ""
    async for event in runner.run_async(
        user_id="user", session_id=session.id, new_message=message(task), run_config=config
    ):
        if event.content and event.content.parts and not event.partial:
            text = event.content.parts[0].text or text
    return text


class TestGoogleADK(AdapterContract):
    def instrumentor(self) -> Any:
        return GoogleADKInstrumentor()

    def client(self, url: str, key: str) -> Any:
        client = AsyncOpenAI(base_url=url, api_key=key, max_retries=3)
        return LiteLlm("openai/policy", client=client, max_retries=3)  # litellm sets the client's to its own

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return await said(agent_of(client, SOLVER, tools=[tool], on_tool_error_callback=told), task, stream)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        members = [agent_of(client, name) for name in TEAM]
        await said(SequentialAgent(name="team", sub_agents=members), task, stream)

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        # the framework's thread has a loop of its own, which no connection may outlive
        alone = self.sdk(client).with_options(default_headers={"connection": "close"})
        model = LiteLlm("openai/policy", client=alone)
        agent = agent_of(model, SOLVER, tools=[tool], on_tool_error_callback=told)
        runner = InMemoryRunner(agent, app_name="contract")
        session = runner.session_service.create_session_sync(app_name="contract", user_id="user")
        events = list(runner.run(user_id="user", session_id=session.id, new_message=message(task)))
        asyncio.run(self.close(client))
        return str(events[-1].content.parts[0].text)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        return json.loads(await said(agent_of(client, SOLVER, output_schema=schema), task, stream))

    async def several(self, client: Any, task: str, n: int) -> bool:
        many = LiteLlm("openai/policy", client=self.sdk(client), n=n)
        await said(agent_of(many, SOLVER), task, False)
        return True

    def arguments(self, stream: bool) -> str:
        return json.dumps(json.loads(ARGUMENTS))

    def result(self, text: str) -> str:
        return json.dumps({"result": int(text)})

    def sdk(self, client: Any) -> AsyncOpenAI:
        return client._additional_args["client"]

    async def close(self, client: Any) -> None:
        await self.sdk(client).close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        nodes = [(node_class(), "run")] if node_class() else []
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (BaseAgent, "run_async"),
            (PluginManager, "run_before_tool_callback"),
            (PluginManager, "run_on_tool_error_callback"),
            *nodes,
        ]
