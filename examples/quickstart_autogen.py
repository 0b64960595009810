"""AutoGen: an AssistantAgent with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_autogen.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
)


async def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    client = OpenAIChatCompletionClient(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, model_info=INFO
    )
    agent = AssistantAgent(
        "solver", client, tools=[calculate], system_message="Use the calculator.", max_tool_iterations=4
    )
    result = await agent.run(task=f"{task['question']}\n\n{ANSWER_FORM}")
    await client.close()
    return grade(result.messages[-1].to_text(), task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
