"""The agent, in Microsoft Agent Framework, with a calculator."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

import agentlightning as agl
from reward import score
from tools import calculate


def build(client: OpenAIChatCompletionClient) -> Agent:
    """Return the agent, with a model that may call the calculator."""
    return Agent(client, "Use the calculator.", name="solver", tools=[calculate])


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    client = OpenAIChatCompletionClient(llm.model, base_url=llm.endpoint, api_key=llm.api_key)
    return (await build(client).run(question)).text


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
