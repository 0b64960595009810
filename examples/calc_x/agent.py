"""The agent: AutoGen's AssistantAgent with a calculator, as anybody would write it.

``reflect_on_tool_use`` makes it two model calls: one that may call the calculator, one that reads the result
and answers. So there is one round of tools, and a problem of several steps goes into one expression. Runs
share nothing that changes: each has its own client and closes it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Protocol

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_core.tools import FunctionTool, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import DefaultAsyncHttpxClient

# The only lines of this project in the agent: its tool, and how answers are asked for and rewarded.
from calc_x.calculator import DESCRIPTION, calculate
from calc_x.calculator_server import workbench as calculator_over_mcp
from calc_x.grading import ANSWER_FORM, grade

CALCULATOR = FunctionTool(calculate, description=DESCRIPTION)
MODEL_INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
)
# Reading the certificate store takes 18 ms, all the rest of a client one: once is enough.
TLS = ssl.create_default_context()


class Llm(Protocol):
    """Where the model is."""

    @property
    def endpoint(self) -> str:
        """Base URL of an OpenAI-compatible API, with its ``/v1``."""

    @property
    def api_key(self) -> str | None: ...

    @property
    def model(self) -> str: ...


async def solve(task: Mapping[str, Any], llm: Llm) -> float:
    """Answer one problem with the calculator in process and return the reward, 1.0 or 0.0."""
    return grade(await answer(task["question"], llm), task["result"], task["question"])


async def solve_over_mcp(task: Mapping[str, Any], llm: Llm) -> float:
    """The same with the calculator in a subprocess of its own, over MCP stdio."""
    async with calculator_over_mcp() as workbench:
        said = await answer(task["question"], llm, workbench)
        return grade(said, task["result"], task["question"])


async def answer(question: str, llm: Llm, workbench: Workbench | None = None) -> str:
    """The agent's last message to a question; it uses the tools of ``workbench`` when one is given."""
    client = OpenAIChatCompletionClient(
        model=llm.model,
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        model_info=MODEL_INFO,
        http_client=DefaultAsyncHttpxClient(verify=TLS),  # type: ignore[call-arg]  # passed on to openai
    )
    try:
        agent = AssistantAgent(
            name="calc",
            model_client=client,
            tools=None if workbench else [CALCULATOR],
            workbench=workbench,
            reflect_on_tool_use=True,
        )
        result = await agent.run(task=f"{question}\n\n{ANSWER_FORM}")
        return result.messages[-1].to_text()
    finally:
        await client.close()
