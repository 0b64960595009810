"""Agents of three quickstarts, asked for their answer in a form, each by its framework's means.

``solve`` takes a task of :func:`load`. Its ``form`` is one of

- ``forced``: the agent of the quickstart, whose first answer must be a tool call; later ones are free;
- ``schema``: no tools; an :class:`Answer` is asked for, in words and as the framework's structured output;
- ``words``: the same words alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import CreateResult, FunctionExecutionResultMessage, ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from counts import Answer
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

import agentlightning as agl
from calc_x.calculator import calculate_text
from calc_x.grading import ANSWER_FORM, grade
from quickstart.sums import load as sums

FORMS = ("forced", "schema", "words")
LIMIT = 96
"""Tokens of an answer, at most."""
TOOL_SYSTEM = "Use the calculator."
FORM_SYSTEM = 'Answer "What is 2 + 3?" with the JSON object {"expression": "2 + 3", "answer": 5}, and so on.'


async def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


class FirstForced(OpenAIChatCompletionClient):
    """AutoGen's client; a call with tools before any tool has answered must be a tool call."""

    async def create(self, messages: Sequence[Any], **given: Any) -> CreateResult:
        answered = any(isinstance(message, FunctionExecutionResultMessage) for message in messages)
        if given.get("tools") and not answered:
            given["tool_choice"] = "required"
        return await super().create(messages, **given)


async def autogen(form: str, question: str, llm: agl.LLM) -> str:
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        structured_output=True,
        family=ModelFamily.UNKNOWN,
    )
    client = FirstForced(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, model_info=info, max_tokens=LIMIT
    )
    forced = form == "forced"
    agent = AssistantAgent(
        "solver",
        client,
        tools=[calculate] if forced else None,
        system_message=TOOL_SYSTEM if forced else FORM_SYSTEM,
        max_tool_iterations=4,
        output_content_type=Answer if form == "schema" else None,
    )
    try:
        return (await agent.run(task=question)).messages[-1].to_text()
    finally:
        await client.close()


async def openai_agents(form: str, question: str, llm: agl.LLM) -> str:
    forced = form == "forced"
    agent = Agent(
        name="solver",
        instructions=TOOL_SYSTEM if forced else FORM_SYSTEM,
        model=OpenAIChatCompletionsModel(llm.model, AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)),
        tools=[function_tool(calculate)] if forced else [],
        output_type=Answer if form == "schema" else None,
        # The SDK takes the choice back after the first tool call.
        model_settings=ModelSettings(max_tokens=LIMIT, tool_choice="required" if forced else None),
    )
    return str((await Runner.run(agent, question, max_turns=4)).final_output)


async def pydantic_ai(form: str, question: str, llm: agl.LLM) -> str:
    forced = form == "forced"
    model = OpenAIChatModel(
        llm.model,
        provider=OpenAIProvider(base_url=llm.endpoint, api_key=llm.api_key),
        profile=OpenAIModelProfile(supports_json_schema_output=True),
    )

    def settings(context: Any) -> Any:
        first = forced and context.run_step <= 1
        return {"max_tokens": LIMIT, **({"tool_choice": "required"} if first else {})}

    agent: Any = PydanticAgent(
        model,
        name="solver",
        instructions=TOOL_SYSTEM if forced else FORM_SYSTEM,
        tools=[calculate] if forced else [],
        output_type=NativeOutput(Answer) if form == "schema" else str,
        model_settings=settings,
        retries=0,
    )
    return str((await agent.run(question)).output)


FRAMEWORKS: dict[str, Callable[[str, str, agl.LLM], Awaitable[str]]] = {
    "autogen": autogen,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
}


def load(frameworks: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """The first ``limit`` held-out sums, in every form of every framework."""
    return [
        {"framework": framework, "form": form, "question": problem["question"], "result": problem["result"]}
        for framework in frameworks
        for form in FORMS
        for problem in sums("heldout", limit)
    ]


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Ask; the reward is the quickstart's. An agent that fails on the model's answer fails here too."""
    asked = f"{task['question']}\n\n{ANSWER_FORM}" if task["form"] == "forced" else task["question"]
    said = await FRAMEWORKS[task["framework"]](task["form"], asked, llm)
    return grade(said, task["result"])
