"""Agents of frameworks as their quickstarts build them, asked whole and streamed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import quickstart_langgraph
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_openai import ChatOpenAI
from quickstart_autogen import INFO, calculate
from quickstart_openai import solve as bare

import agentlightning as agl
from calc_x.grading import ANSWER_FORM, grade

__all__ = ["AGENTS", "bare", "problem"]


def problem(task: dict[str, Any]) -> str:
    """A task as the user says it."""
    return f"{task['question']}\n\n{ANSWER_FORM}"


@agl.rollout
async def langgraph(task: dict[str, Any], llm: agl.LLM) -> float:
    model = ChatOpenAI(model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, streaming=task["stream"])
    messages = {"messages": [("user", problem(task))]}
    result = await quickstart_langgraph.build(model).ainvoke(messages, {"recursion_limit": 8})
    return grade(result["messages"][-1].content, task["result"])


@agl.rollout
async def autogen(task: dict[str, Any], llm: agl.LLM) -> float:
    client = OpenAIChatCompletionClient(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, model_info=INFO
    )
    agent = AssistantAgent(
        "solver",
        client,
        tools=[calculate],
        system_message="Use the calculator.",
        max_tool_iterations=4,
        model_client_stream=task["stream"],
    )
    result = await agent.run(task=problem(task))
    await client.close()
    return grade(result.messages[-1].to_text(), task["result"])


AGENTS: dict[str, tuple[Any, bool]] = {
    "bare client": (bare, False),
    "LangGraph": (langgraph, False),
    "LangGraph, stream": (langgraph, True),
    "AutoGen": (autogen, False),
    "AutoGen, stream": (autogen, True),
}
"""Name → agent, and whether it streams."""
