"""AgentScope 1.0 keeps the adapter contract."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("agentscope.memory", reason="AgentScope 1 is not installed")  # 2 has none

import openai._base_client as sdk
from agentscope.agent import AgentBase, ReActAgent
from agentscope.formatter import OpenAIChatFormatter, OpenAIMultiAgentFormatter
from agentscope.message import Msg, TextBlock, ToolUseBlock
from agentscope.model import OpenAIChatModel
from agentscope.pipeline import MsgHub, sequential_pipeline
from agentscope.tool import Toolkit, ToolResponse
from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM
from contract.adapter import AdapterContract

from agl_agentscope.instrumentor import AgentScopeInstrumentor


def as_tool(function: Callable[..., Any]) -> Callable[..., Any]:
    """A tool of AgentScope 1 says what it returns as blocks."""

    @functools.wraps(function)
    def tool(*args: Any, **kwargs: Any) -> ToolResponse:
        return ToolResponse([TextBlock(type="text", text=str(function(*args, **kwargs)))])

    return tool


def toolkit(*functions: Callable[..., Any]) -> Toolkit:
    made = Toolkit()
    for function in functions:
        made.register_tool_function(as_tool(function))
    return made


class Models:
    """The same endpoint, answering whole and as a stream."""

    def __init__(self, url: str, key: str) -> None:
        client = {"base_url": url, "max_retries": 3}
        self.whole, self.stream = (
            OpenAIChatModel("policy", api_key=key, stream=stream, client_kwargs=client)
            for stream in (False, True)
        )

    def pick(self, stream: bool) -> OpenAIChatModel:
        return self.stream if stream else self.whole

    async def close(self) -> None:
        await self.whole.client.close()
        await self.stream.client.close()


class TestAgentScope1(AdapterContract):
    @pytest.fixture(autouse=True)
    def silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AGENTSCOPE_DISABLE_CONSOLE_OUTPUT", "true")

    def instrumentor(self) -> Any:
        return AgentScopeInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return Models(url, key)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        agent = ReActAgent(
            SOLVER, f"You are {SOLVER}.", client.pick(stream), OpenAIChatFormatter(), toolkit(tool)
        )
        answer = await agent(Msg("user", task, "user"))
        return answer.get_text_content() or ""

    async def team(self, client: Any, task: str, stream: bool) -> None:
        agents = [
            ReActAgent(name, f"You are {name}.", client.pick(stream), OpenAIMultiAgentFormatter())
            for name in TEAM
        ]
        async with MsgHub(agents, announcement=Msg("user", task, "user")):
            await sequential_pipeline(agents)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent = ReActAgent(SOLVER, "Solve.", client.pick(stream), OpenAIChatFormatter())
        return (await agent(Msg("user", task, "user"), structured_model=schema)).metadata

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        class Polite(ReActAgent):  # type: ignore[misc] # untyped where it is not installed
            """A user's class, which calls the framework's."""

            async def reply(self, *args: Any, **kwargs: Any) -> Any:
                return await super().reply(*args, **kwargs)

        def made(cls: type[Any] = ReActAgent) -> Any:
            return cls(SOLVER, f"You are {SOLVER}.", client.pick(False), OpenAIChatFormatter())

        return {
            "the agent": lambda task: made()(Msg("user", task, "user")),
            "reply": lambda task: made().reply(Msg("user", task, "user")),
            "reply of a user's class": lambda task: made(Polite).reply(Msg("user", task, "user")),
            "a user's agent": lambda task: made(Polite)(Msg("user", task, "user")),
        }

    async def several(self, client: Any, task: str, n: int) -> bool:
        await client.pick(False)([{"role": "user", "content": task}], n=n)
        return True

    async def close(self, client: Any) -> None:
        await client.close()

    def arguments(self, stream: bool) -> str:
        kept = stream and "raw_input" in ToolUseBlock.__annotations__  # the model's own text
        return ARGUMENTS if kept else '{"a": 17, "b": 25}'

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (AgentBase, "__call__"),
            (AgentBase, "__init__"),
            (ReActAgent, "reply"),
            (Toolkit, "call_tool_function"),
        ]
