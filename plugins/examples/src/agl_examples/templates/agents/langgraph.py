"""The agent, in LangGraph: the model thinks, the calculator calculates, until there is an answer."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient

import agentlightning as agl
import tools
from reward import score


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return tools.calculate(expression)


def build(model: BaseChatModel) -> Any:
    """Return the graph, with a model that may call the calculator."""
    thinker = model.bind_tools([calculate])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [await thinker.ainvoke([SystemMessage("Use the calculator."), *state["messages"]])]
        }

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([calculate]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    async with DefaultAsyncHttpxClient() as http:  # LangChain never closes those it makes itself
        model = ChatOpenAI(
            model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, http_async_client=http
        )
        result = await build(model).ainvoke({"messages": [("user", question)]}, {"recursion_limit": 8})
    return str(result["messages"][-1].content)


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
