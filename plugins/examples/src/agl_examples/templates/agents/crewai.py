"""The agent, in CrewAI: a crew of one with a calculator."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

import agentlightning as agl
import tools
from reward import score


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return tools.calculate(expression)


def build(model: LLM, question: str) -> Crew:
    """Return the crew for a question, with a model that may call the calculator."""
    solver = Agent(
        role="solver",
        goal="Be right.",
        backstory="Use the calculator.",
        llm=model,
        tools=[calculate],
        max_iter=4,
    )
    job = Task(description=question, expected_output="### ANSWER: <answer> ###", agent=solver)
    return Crew(agents=[solver], tasks=[job])


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    model = LLM(f"openai/{llm.model}", base_url=llm.endpoint, api_key=llm.api_key)
    return str((await build(model, question).akickoff()).raw)


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
