"""The agent: LangChain's `create_agent` with two tools over the index, as anybody would write it.

It searches, reads, searches again with what it read, and answers with the fact alone. What the tools return
comes back as messages of the role ``tool``: the model reads them, and no token of them is ever trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from openai import DefaultAsyncHttpxClient

import agentlightning as agl
from search.grading import grade
from search.index import factbook

SYSTEM = (
    "Look up the answer. A document is a section of a country: Geography, Government, Economy, "
    "Communications or Transportation. Answer with the fact alone."
)
CALLS = 6
"""Model calls of a rollout: a model that searches for ever would fill its context."""


def search(words: str) -> str:
    """Find documents by words: three titles, each with its first line."""
    return factbook().search(words)


def read(title: str) -> str:
    """Read the document with a title."""
    return factbook().read(title)


@agl.rollout
async def solve(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """Answer one question; return 1.0 if the answer is right, else 0.0."""
    async with DefaultAsyncHttpxClient() as http:  # LangChain never closes those it makes itself
        model = ChatOpenAI(
            model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, http_async_client=http
        )
        agent = create_agent(model, tools=[search, read], system_prompt=SYSTEM, name="search")
        try:
            # A step of the graph is a call of the model or of its tools.
            result = await agent.ainvoke(
                {"messages": [("user", task["question"])]}, {"recursion_limit": 2 * CALLS}
            )
        except GraphRecursionError:
            return 0.0
    return grade(result["messages"][-1].text, task["answer"])
