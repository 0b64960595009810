"""An imaginary agent framework: agents with tools, whole or streamed, and teams in which each speaks once.

It has what makes adapters necessary: nothing in it says to anybody which agent asks the model.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from openai import AsyncOpenAI


class ToolResult(NamedTuple):
    """What a tool gave back: the model reads ``text``."""

    text: str
    failed: bool


class Agent:
    """A name, a model, and tools, which are functions of integers."""

    def __init__(
        self, name: str, client: AsyncOpenAI, system: str, tools: Sequence[Callable[..., Any]] = ()
    ) -> None:
        self.name, self.client, self.system = name, client, system
        self.tools = {tool.__name__: tool for tool in tools}

    async def run(self, task: str) -> str:
        """Ask the model until it needs no more tools; the last answer."""
        messages = self._begin(task)
        while True:
            answer = await self.client.chat.completions.create(**self._request(messages))
            message = answer.choices[0].message
            messages.append(_said(message))
            if not message.tool_calls:
                return message.content or ""
            await self._use_tools(messages, message.tool_calls)

    async def stream(self, task: str) -> AsyncIterator[str]:
        """As :meth:`run`; yields the text as it comes."""
        messages = self._begin(task)
        while True:
            async with self.client.chat.completions.stream(**self._request(messages)) as events:
                async for event in events:
                    if event.type == "content.delta":
                        yield event.delta
                message = (await events.get_final_completion()).choices[0].message
            messages.append(_said(message))
            if not message.tool_calls:
                return
            await self._use_tools(messages, message.tool_calls)

    def _begin(self, task: str) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": task}]

    def _request(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        tools = [
            {
                "type": "function",
                "function": {"name": name, "strict": True, "parameters": _parameters(tool)},
            }
            for name, tool in self.tools.items()
        ]
        return {"model": "policy", "messages": messages, **({"tools": tools} if tools else {})}

    async def _use_tools(self, messages: list[dict[str, Any]], calls: Sequence[Any]) -> None:
        for call in calls:
            result = await self._call_tool(call)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result.text})

    async def _call_tool(self, call: Any) -> ToolResult:
        """Run one tool; what goes wrong is told to the model."""
        try:
            return ToolResult(
                str(self.tools[call.function.name](**json.loads(call.function.arguments))), False
            )
        except Exception as error:
            return ToolResult(f"{type(error).__name__}: {error}", True)


class Team:
    """Agents who speak in turn, each reading what was said."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = agents

    async def run(self, task: str, stream: bool = False) -> str:
        """Everybody speaks once; the whole conversation."""
        for agent in self.agents:
            if stream:
                task += "\n" + "".join([text async for text in agent.stream(task)])
            else:
                task += "\n" + await agent.run(task)
        return task


def _said(message: Any) -> dict[str, Any]:
    """The model's message as the next request repeats it, tool calls as it wrote them."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": name, "arguments": call.function.arguments}}
        for call in message.tool_calls or ()
        if (name := call.function.name)
    ]
    said = {"role": "assistant", "content": message.content}
    return {**said, "tool_calls": calls} if calls else said


def _parameters(tool: Callable[..., Any]) -> dict[str, Any]:
    names = tool.__code__.co_varnames[: tool.__code__.co_argcount]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }
