"""Strands Agents: an `Agent` with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_strands_agents.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from strands import Agent, tool
from strands.models.openai import OpenAIModel

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    client = {"base_url": llm.endpoint, "api_key": llm.api_key}
    model = OpenAIModel(client_args=client, model_id=llm.model)
    prompt = "Use the calculator."
    agent = Agent(model, name="solver", tools=[calculate], system_prompt=prompt, callback_handler=None)
    question = f"{task['question']}\n\n{ANSWER_FORM}"
    answer = await agent.invoke_async(question, limits={"turns": 6})
    return grade(str(answer).strip(), task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
