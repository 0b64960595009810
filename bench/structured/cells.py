"""How each framework asks for structured output and forced tools, one call a cell.

``CELLS`` maps a framework to its features, each a coroutine of an :class:`Asked`. The answer's form is a
vote, whose grammar is bounded, so that an answer of random weights is whole. A framework that cannot ask for
a feature has a reason in ``LACKS``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from openai import AsyncOpenAI
from pydantic import BaseModel

FEATURES = (
    "json_schema", "json_object", "required tool", "named tool", "no parallel tools", "previous_response_id",
)  # fmt: skip
TASK = "Vote yes or no, in JSON."


class Vote(BaseModel):
    """A vote."""

    choice: Literal["yes", "no"]
    sure: bool


class Asked(NamedTuple):
    """Where the model is."""

    url: str
    key: str

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key=self.key, max_retries=0, timeout=120)


def vote(choice: Literal["yes", "no"], sure: bool) -> str:
    """Cast a vote."""
    return f"{choice}, {sure}"


SCHEMA = {
    "type": "object",
    "properties": {"choice": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["choice", "sure"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "vote", "description": "Vote.", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "vote", "description": "Vote.", "parameters": SCHEMA, "strict": True}
FORM = {"type": "json_schema", "json_schema": {"name": "vote", "schema": SCHEMA, "strict": True}}
SAID = [{"role": "user", "content": TASK}]
LIMIT = 96
POLICY, OWN = "policy", "own"
"""Names of the model. Calls to the second one keep the agent's own sampling."""
Cell = Callable[[Asked], Awaitable[Any]]


def chat(model: str = POLICY, **fields: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        async with asked.client() as client:
            create: Any = client.chat.completions.create
            return await create(model=model, messages=SAID, max_tokens=LIMIT, **fields)

    return ask


def responses(**fields: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        async with asked.client() as client:
            create: Any = client.responses.create
            return await create(model="policy", input=TASK, max_output_tokens=LIMIT, **fields)

    return ask


async def follow_up(asked: Asked) -> Any:
    async with asked.client() as client:
        first = await client.responses.create(model="policy", input=TASK, max_output_tokens=LIMIT)
        return await client.responses.create(
            model="policy", input="Why?", previous_response_id=first.id, max_output_tokens=LIMIT
        )


def pydantic_ai(output: str = "", **settings: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.profiles.openai import OpenAIModelProfile
        from pydantic_ai.providers.openai import OpenAIProvider

        profile = OpenAIModelProfile(supports_json_object_output=True, supports_json_schema_output=True)
        provider = OpenAIProvider(openai_client=asked.client())
        model = OpenAIChatModel("policy", provider=provider, profile=profile)
        kinds: dict[str, Any] = {
            "native": NativeOutput(Vote), "prompted": PromptedOutput(Vote), "tool": ToolOutput(Vote), "": str,
        }  # fmt: skip
        kind: Any = kinds[output]
        tools: Any = [] if output else [vote]
        agent: Any = Agent(model, output_type=kind, tools=tools, retries=0)
        return await agent.run(TASK, model_settings={"max_tokens": LIMIT, **settings})

    return ask


def openai_agents(output: bool = False, api: str = "chat", follow: bool = False, **settings: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        from agents import (
            Agent,
            ModelSettings,
            OpenAIChatCompletionsModel,
            OpenAIResponsesModel,
            Runner,
            function_tool,
            set_tracing_disabled,
        )

        set_tracing_disabled(True)
        kind: Any = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
        agent: Any = Agent(
            name="voter",
            model=kind("policy", asked.client()),
            output_type=Vote if output else None,
            tools=[] if output else [function_tool(vote)],
            tool_use_behavior="stop_on_first_tool",
            model_settings=ModelSettings(max_tokens=LIMIT, **settings),
        )
        first = await Runner.run(agent, TASK, max_turns=1)
        if follow:
            await Runner.run(agent, "Why?", previous_response_id=first.last_response_id, max_turns=1)
        return first

    return ask


def autogen(json_output: Any = None, tool: Any = None, **fields: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        from autogen_core.models import ModelFamily, UserMessage
        from autogen_core.tools import FunctionTool
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        info = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
        made: Any = OpenAIChatCompletionClient
        client = made(
            model="policy",
            base_url=asked.url,
            api_key=asked.key,
            max_retries=0,
            max_tokens=LIMIT,
            model_info={**info, "family": ModelFamily.UNKNOWN},
            **fields,
        )
        given: dict[str, Any] = {}
        if json_output is None:
            own = FunctionTool(vote, description="Vote.")
            given = {"tools": [own], "tool_choice": own if tool == "named" else tool or "auto"}
        else:
            given = {"json_output": json_output}
        try:
            return await client.create([UserMessage(content=TASK, source="user")], **given)
        finally:
            await client.close()

    return ask


def langchain(method: str = "", **bound: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        from langchain_openai import ChatOpenAI

        made: Any = ChatOpenAI
        model = made(model="policy", base_url=asked.url, api_key=asked.key, max_retries=0, max_tokens=LIMIT)
        if method:
            return await model.with_structured_output(Vote, method=method).ainvoke(TASK)
        return await model.bind_tools([vote], **bound).ainvoke(TASK)

    return ask


def agent_framework(**options: Any) -> Cell:
    async def ask(asked: Asked) -> Any:
        from agent_framework import Agent, tool
        from agent_framework.openai import OpenAIChatCompletionClient

        made: Any = OpenAIChatCompletionClient("policy", async_client=asked.client())
        tools: Any = [] if "response_format" in options else [tool(vote)]
        agent: Any = Agent(made, name="voter", tools=tools)
        return await agent.run(TASK, options={"max_tokens": LIMIT, **options})

    return ask


CELLS: dict[str, dict[str, Cell]] = {
    "openai, chat": {
        "json_schema": chat(response_format=FORM),
        "json_object": chat(response_format={"type": "json_object"}),
        "required tool": chat(tools=[TOOL], tool_choice="required"),
        "named tool": chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "vote"}}),
        "no parallel tools": chat(tools=[TOOL], parallel_tool_calls=False),
    },
    "openai, responses": {
        "json_schema": responses(
            text={"format": {"type": "json_schema", "name": "vote", "schema": SCHEMA, "strict": True}}
        ),
        "json_object": responses(text={"format": {"type": "json_object"}}),
        "required tool": responses(tools=[FLAT], tool_choice="required"),
        "named tool": responses(tools=[FLAT], tool_choice={"type": "function", "name": "vote"}),
        "no parallel tools": responses(tools=[FLAT], parallel_tool_calls=False),
        "previous_response_id": follow_up,
    },
    "Pydantic AI": {
        "json_schema": pydantic_ai("native"),
        "json_object": pydantic_ai("prompted"),
        "required tool": pydantic_ai("tool"),
        "named tool": pydantic_ai("tool", tool_choice=["final_result"]),
        "no parallel tools": pydantic_ai(parallel_tool_calls=False),
    },
    "OpenAI Agents": {
        "json_schema": openai_agents(output=True),
        "required tool": openai_agents(tool_choice="required"),
        "named tool": openai_agents(tool_choice="vote"),
        "no parallel tools": openai_agents(parallel_tool_calls=False),
        "previous_response_id": openai_agents(output=True, api="responses", follow=True),
    },
    "AutoGen": {
        "json_schema": autogen(Vote),
        "json_object": autogen(True),
        "required tool": autogen(tool="required"),
        "named tool": autogen(tool="named"),
        "no parallel tools": autogen(parallel_tool_calls=False),
    },
    "LangChain": {
        "json_schema": langchain("json_schema"),
        "json_object": langchain("json_mode"),
        "required tool": langchain(tool_choice="required"),
        "named tool": langchain(tool_choice="vote"),
        "no parallel tools": langchain(parallel_tool_calls=False),
    },
    "Agent Framework": {
        "json_schema": agent_framework(response_format=Vote),
        "json_object": agent_framework(response_format={"type": "json_object"}),
        "required tool": agent_framework(tool_choice="required"),
        "named tool": agent_framework(tool_choice={"mode": "required", "required_function_name": "vote"}),
        "no parallel tools": agent_framework(allow_multiple_tool_calls=False),
    },
}
LACKS: dict[str, dict[str, str]] = {
    "openai, chat": {"previous_response_id": "is of the Responses API"},
    "Pydantic AI": {"previous_response_id": "its chat model has none"},
    "OpenAI Agents": {"json_object": "the SDK asks by schema only"},
    "AutoGen": {"previous_response_id": "its client speaks chat completions"},
    "LangChain": {"previous_response_id": "its chat completions have none"},
    "Agent Framework": {"previous_response_id": "its chat completion client has none"},
}
OWN_SAMPLING: dict[str, Cell] = {
    "own temperature": chat(OWN, temperature=0.7),
    "own top_p": chat(OWN, top_p=0.8),
}
"""Calls whose sampling is not the run's, of the openai SDK."""
REFUSED: dict[tuple[str, str, str], str] = {}
"""Engine, framework and feature of cells that are not served, and why."""
