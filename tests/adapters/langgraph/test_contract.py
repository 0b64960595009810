"""LangGraph keeps the adapter contract, with graphs written by hand: a node is an agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("langgraph")

import openai._base_client as sdk
from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM
from contract.adapter import AdapterContract
from contract.chat_openai import ask, chat_openai, close, finish, given
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agl_langgraph.instrumentor import LangGraphInstrumentor


def speaker(model: Any, name: str) -> Callable[[MessagesState], dict[str, Any]]:
    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(f"You are {name}."), *state["messages"]])]}

    return speak


def aspeaker(model: Any, name: str) -> Callable[[MessagesState], Any]:
    async def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(f"You are {name}."), *state["messages"]])]}

    return speak


def tool_graph(client: Any, tool: Callable[..., Any], kind: Callable[..., Any]) -> Any:
    """The loop of every tutorial: a node that asks the model, and one that runs its tools."""
    graph = StateGraph(MessagesState)
    graph.add_node(SOLVER, kind(client.bind_tools([tool]), SOLVER))
    graph.add_node("tools", ToolNode([tool], handle_tool_errors=True))
    graph.add_edge(START, SOLVER)
    graph.add_conditional_edges(SOLVER, tools_condition)
    graph.add_edge("tools", SOLVER)
    return graph.compile()


class Typed(MessagesState):
    """A conversation, and the answer it came to."""

    answer: Any


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LangChain's own, streaming a schema
class TestLangGraph(AdapterContract):
    def instrumentor(self) -> Any:
        return LangGraphInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return chat_openai(url, retries=3)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        return await ask(tool_graph(client, tool, aspeaker), task, stream)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        graph = StateGraph(MessagesState)
        for before, name in zip((START, *TEAM), TEAM, strict=False):
            graph.add_node(name, aspeaker(client, name))
            graph.add_edge(before, name)
        await ask(graph.compile(), task, stream)

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str | None:
        answer = tool_graph(client, tool, speaker).invoke(given(task))
        client.root_client.close()
        return str(answer["messages"][-1].content)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        asked = client.with_structured_output(schema, method="json_schema")

        async def solve(state: Typed) -> dict[str, Any]:
            return {"answer": await asked.ainvoke(state["messages"])}

        graph = StateGraph(Typed)
        graph.add_node(SOLVER, solve)
        graph.add_edge(START, SOLVER)
        return (await finish(graph.compile(), task, stream))["answer"]

    def entries(self, client: Any) -> dict[str, Callable[[str], Awaitable[Any]]]:
        def made(kind: Callable[..., Any]) -> Any:
            graph = StateGraph(MessagesState)
            graph.add_node(SOLVER, kind(client, SOLVER))
            graph.add_edge(START, SOLVER)
            return graph.compile()

        async def streamed(task: str) -> None:
            async for _ in made(aspeaker).astream(given(task)):
                pass

        return {
            "ainvoke": lambda task: made(aspeaker).ainvoke(given(task)),
            "astream": streamed,
            "abatch": lambda task: made(aspeaker).abatch([given(task)]),
            "invoke": lambda task: asyncio.to_thread(made(speaker).invoke, given(task)),
            "stream": lambda task: asyncio.to_thread(lambda: [*made(speaker).stream(given(task))]),
            "batch": lambda task: asyncio.to_thread(made(speaker).batch, [given(task)]),
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
