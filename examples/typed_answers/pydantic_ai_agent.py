"""Pydantic AI: an agent with a calculator, whose answer is an object (``output_type``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import agentlightning as agl
from calc_x.calculator import calculate_text
from calc_x.grading import grade

MOST = UsageLimits(request_limit=4)
"""A model that calculates for ever would fill its context."""


class Answer(BaseModel):
    """The answer to the problem."""

    answer: float


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout
async def solve(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """Return 1.0 if the agent's answer is right, else 0.0."""
    provider = OpenAIProvider(base_url=llm.endpoint, api_key=llm.api_key)
    agent = Agent(
        OpenAIChatModel(llm.model, provider=provider),
        name="solver",
        instructions="Use the calculator.",
        tools=[calculate],
        output_type=Answer,
    )
    try:
        result = await agent.run(task["question"], usage_limits=MOST)
    except UsageLimitExceeded:
        return 0.0
    return grade(f"{result.output.answer:g}", task["result"])
