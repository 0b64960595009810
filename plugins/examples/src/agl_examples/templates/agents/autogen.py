"""The agent, in AutoGen: an AssistantAgent with a calculator."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import agentlightning as agl
import tools
from reward import score

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
)


async def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return tools.calculate(expression)


def build(client: ChatCompletionClient) -> AssistantAgent:
    """Return the agent, with a model that may call the calculator."""
    return AssistantAgent(
        "solver", client, tools=[calculate], system_message="Use the calculator.", max_tool_iterations=4
    )


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    client = OpenAIChatCompletionClient(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, model_info=INFO
    )
    try:
        result = await build(client).run(task=question)
    finally:
        await client.close()
    return str(result.messages[-1].to_text())


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
