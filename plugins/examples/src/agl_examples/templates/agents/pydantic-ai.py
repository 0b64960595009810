"""The agent, in Pydantic AI, with a calculator."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import agentlightning as agl
from reward import score
from tools import calculate


def build(model: Model) -> Agent[None, str]:
    """Return the agent, with a model that may call the calculator."""
    return Agent(model, name="solver", instructions="Use the calculator.", tools=[calculate])


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    provider = OpenAIProvider(base_url=llm.endpoint, api_key=llm.api_key)
    result = await build(OpenAIChatModel(llm.model, provider=provider)).run(question)
    return result.output


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
