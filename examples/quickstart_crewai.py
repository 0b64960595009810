"""CrewAI: a crew of one with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_crewai.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

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
    model = LLM(f"openai/{llm.model}", base_url=llm.endpoint, api_key=llm.api_key)
    solver = Agent(
        role="solver",
        goal="Be right.",
        backstory="Use the calculator.",
        llm=model,
        tools=[calculate],
        max_iter=4,
    )
    job = Task(description=task["question"], expected_output=ANSWER_FORM, agent=solver)
    result = await Crew(agents=[solver], tasks=[job]).akickoff()
    return grade(result.raw, task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
