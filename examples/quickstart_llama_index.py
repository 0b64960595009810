"""LlamaIndex: a `FunctionAgent` with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_llama_index.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from openai import DefaultAsyncHttpxClient

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade

HTTP = DefaultAsyncHttpxClient()  # for all rollouts: else each of their models makes one, which takes long


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    model = OpenAILike(
        model=llm.model,
        api_base=llm.endpoint,
        api_key=llm.api_key,
        async_http_client=HTTP,
        is_chat_model=True,
        is_function_calling_model=True,
    )
    agent = FunctionAgent(name="solver", llm=model, tools=[calculate], system_prompt="Use the calculator.")
    answer = await agent.run(user_msg=f"{task['question']}\n\n{ANSWER_FORM}", max_iterations=6)
    return grade(str(answer), task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
