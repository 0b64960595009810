"""Google ADK: an `Agent` with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_google_adk.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from openai import AsyncOpenAI

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


def plain(callback_context, llm_request):
    """ADK adds the agent's name to the instruction, and JSON to results: more than the tiny policy reads."""
    llm_request.config.system_instruction = "Use the calculator."
    for part in [part for content in llm_request.contents for part in content.parts]:
        if part.function_response and isinstance(part.function_response.response, dict):
            part.function_response.response = part.function_response.response["result"]


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    model = LiteLlm(f"openai/{llm.model}", client=client)
    agent = Agent(name="solver", model=model, tools=[calculate], before_model_callback=plain)
    question = f"{task['question']}\n\n{ANSWER_FORM}"
    events = await InMemoryRunner(agent).run_debug(question, quiet=True)
    return grade(events[-1].content.parts[0].text or "", task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
