"""Pydantic AI: an `Agent` with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_pydantic_ai.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    provider = OpenAIProvider(base_url=llm.endpoint, api_key=llm.api_key)
    model = OpenAIChatModel(llm.model, provider=provider)
    agent = Agent(model, name="solver", instructions="Use the calculator.", tools=[calculate])
    result = await agent.run(f"{task['question']}\n\n{ANSWER_FORM}")
    return grade(result.output, task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
