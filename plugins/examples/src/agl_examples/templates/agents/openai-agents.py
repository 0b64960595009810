"""The agent, in the OpenAI Agents SDK, with a calculator."""

from __future__ import annotations

from typing import Any

from agents import Agent, Model, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI

import agentlightning as agl
import tools
from reward import score


@function_tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return tools.calculate(expression)


def build(model: Model) -> Agent[Any]:
    """Return the agent, with a model that may call the calculator."""
    return Agent(name="solver", instructions="Use the calculator.", model=model, tools=[calculate])


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        agent = build(OpenAIChatCompletionsModel(llm.model, client))
        result = await Runner.run(agent, question, max_turns=4)
    return str(result.final_output)


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
