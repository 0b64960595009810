"""LangChain: `create_agent` with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_langchain.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    question = f"{task['question']}\n\n{ANSWER_FORM}"
    async with DefaultAsyncHttpxClient() as http:  # LangChain never closes those it makes itself
        model = ChatOpenAI(
            model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, http_async_client=http
        )
        agent = create_agent(model, tools=[calculate], system_prompt="Use the calculator.", name="solver")
        result = await agent.ainvoke({"messages": [("user", question)]})
    return grade(result["messages"][-1].content, task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
