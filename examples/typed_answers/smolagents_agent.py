"""smolagents: its ``ToolCallingAgent`` with a calculator. The framework's own prompts, whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

import agentlightning as agl
from calc_x.calculator import calculate_text
from calc_x.grading import grade


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: What to calculate.
    """
    return calculate_text(expression)


@agl.rollout
def solve(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """Return 1.0 if the agent's answer is right, else 0.0."""
    model = OpenAIServerModel(llm.model, api_base=llm.endpoint, api_key=llm.api_key)
    agent = ToolCallingAgent([calculate], model, name="solver", verbosity_level=LogLevel.OFF, max_steps=4)
    return grade(str(agent.run(task["question"])), task["result"])
