"""The agent, in LangChain: `create_agent` with a calculator."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient

import agentlightning as agl
from reward import score
from tools import calculate


def build(model: BaseChatModel) -> Any:
    """Return the agent, with a model that may call the calculator."""
    return create_agent(model, tools=[calculate], system_prompt="Use the calculator.", name="solver")


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
