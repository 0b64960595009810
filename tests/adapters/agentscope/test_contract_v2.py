"""AgentScope 2 keeps the adapter contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("agentscope", minversion="2", reason="AgentScope 2 is not installed")

import openai._base_client as sdk
from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit
from agl_testing.contract.script import SOLVER, TEAM
from contract.adapter import AdapterContract

from agl_agentscope.instrumentor import AgentScopeInstrumentor


def unasked() -> AgentState:
    """Tools run without a person's consent."""
    return AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS))


class Models:
    """The same endpoint, answering whole and as a stream; the SDK retries, AgentScope does not."""

    def __init__(self, url: str, key: str) -> None:
        credential = OpenAICredential(api_key=key, base_url=url)
        self.whole, self.stream = (
            OpenAIChatModel(
                credential, "policy", stream=stream, max_retries=0, client_kwargs={"max_retries": 3}
            )
            for stream in (False, True)
        )

    def pick(self, stream: bool) -> OpenAIChatModel:
        return self.stream if stream else self.whole

    async def close(self) -> None:
        await self.whole.client.close()
        await self.stream.client.close()


class TestAgentScope2(AdapterContract):
    def instrumentor(self) -> Any:
        return AgentScopeInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return Models(url, key)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        toolkit = Toolkit(tools=[FunctionTool(tool)])
        agent = Agent(SOLVER, f"You are {SOLVER}.", client.pick(stream), toolkit, state=unasked())
        answer = await agent.reply(UserMsg(name="user", content=task))
        return answer.get_text_content() or ""

    async def team(self, client: Any, task: str, stream: bool) -> None:
        said: Any = UserMsg(name="user", content=task)
        for name in TEAM:
            said = await Agent(name, f"You are {name}.", client.pick(stream)).reply(
                [
                    UserMsg(name="user", content=task),
                    *([] if name == TEAM[0] else [UserMsg(name=TEAM[0], content=said.get_text_content())]),
                ]
            )

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent = Agent(SOLVER, "Solve.", client.pick(stream))
        answer = await agent.reply(UserMsg(name="user", content=task), structured_schema=schema)
        return answer.structured_output

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        def made() -> Agent:
            return Agent(SOLVER, f"You are {SOLVER}.", client.pick(False))

        def said(task: str) -> UserMsg:
            return UserMsg(name="user", content=task)

        async def streamed(task: str) -> None:
            async for _ in made().reply_stream(said(task)):
                pass

        return {"reply": lambda task: made().reply(said(task)), "reply_stream": streamed}

    async def several(self, client: Any, task: str, n: int) -> bool:
        await client.pick(False)([UserMsg(name="user", content=task)], n=n)
        return True

    async def close(self, client: Any) -> None:
        await client.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (Agent, "_reply"),
            (Agent, "_execute_tool_call"),
            (Agent, "_inject_runtime_state"),
        ]
