"""AgentScope 2: an agent with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_agentscope.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    credential = OpenAICredential(api_key=llm.api_key, base_url=llm.endpoint)
    state = AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS))
    model = OpenAIChatModel(credential, llm.model)
    agent = Agent(
        "solver",
        "Use the calculator.",
        model,
        Toolkit(tools=[FunctionTool(calculate)]),
        state=state,
        injection_config=InjectionConfig(inject_runtime_state=False),
    )
    async with model.client:  # closes its connections, which AgentScope leaves open
        answer = await agent.reply(UserMsg(name="user", content=f"{task['question']}\n\n{ANSWER_FORM}"))
    return grade(answer.get_text_content(), task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
