"""The agent, in AgentScope 2, with a calculator."""

from __future__ import annotations

from typing import Any

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import ChatModelBase, OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit

import agentlightning as agl
from reward import score
from tools import calculate


def build(model: ChatModelBase) -> Agent:
    """Return the agent, with a model that may call the calculator without asking anybody."""
    return Agent(
        "solver",
        "Use the calculator.",
        model,
        Toolkit(tools=[FunctionTool(calculate)]),
        state=AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS)),
        injection_config=InjectionConfig(inject_runtime_state=False),
    )


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    model = OpenAIChatModel(OpenAICredential(api_key=llm.api_key, base_url=llm.endpoint), llm.model)
    async with model.client:  # closes its connections, which AgentScope leaves open
        said = await build(model).reply(UserMsg(name="user", content=question))
    return said.get_text_content() or ""


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    return score(task, await answer(task["question"], llm))
