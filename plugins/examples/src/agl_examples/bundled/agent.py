"""``agl.Agent``: a small agent over the OpenAI API, with Python functions as its tools.

It answers tasks with a ``question`` (or plain texts), and is scored by the grader of the task's set, or by
its own ``grade``. Its model calls are captured like those of any agent.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from agentlightning.capture.context import tagged
from agentlightning.decorator.agents import RunnableAgent
from agentlightning.proxies import go_direct
from agentlightning.types import LLM, Resource, Rollout, UsageError
from agl_examples.bundled.task_set import task_set

if TYPE_CHECKING:
    from agl_examples.bundled.mcp import Tools

_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class Agent(RunnableAgent):
    """``tools``: functions, plain or coroutine functions, whose docstrings say what they do; they return what
    has a text. ``None`` for prompt or tools: those of the task's set. ``grade(task, text)``: the reward of an
    answer; ``None``: the grader of the task's set. ``max_turns``: model calls of one task. ``mcp``: servers
    of MCP whose tools come beside, each a command line or an address (:mod:`.mcp`).
    """

    def __init__(
        self,
        name: str = "agent",
        system_prompt: str | None = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        *,
        grade: Callable[[Any, str], float] | None = None,
        max_turns: int = 8,
        mcp: Sequence[str] = (),
    ) -> None:
        if max_turns < 1:
            raise UsageError(f"Agent(max_turns={max_turns}): at least one model call is needed")
        self.name, self.system_prompt, self.grade, self.max_turns = name, system_prompt, grade, max_turns
        self.tools = None if tools is None else list(tools)
        self.mcp = [mcp] if isinstance(mcp, str) else list(mcp)
        for tool in self.tools or ():
            tool_schema(tool)  # a function that cannot be a tool is refused now

    async def rollout(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> float:
        """Answer one task and return its reward."""
        llm = next((one for one in resources.values() if isinstance(one, LLM)), None)
        if llm is None:
            raise UsageError(f"agent {self.name!r} was given no model among {sorted(resources)}")
        text = await self.answer(task, llm)
        return await asyncio.to_thread(self.score, task, text)  # a grader may start a process

    def score(self, task: Any, text: str) -> float:
        """Return the reward of an answer."""
        if self.grade is not None:
            return float(self.grade(task, text))
        if not isinstance(task, Mapping) or "set" not in task:
            raise UsageError(
                f"agent {self.name!r} has no grader for this task: give Agent(grade=…), or the name of the "
                "task's set as task['set']"
            )
        return task_set(task["set"]).grade(task, text)

    async def answer(self, task: Any, llm: LLM) -> str:
        """Return the model's final text. The tools that it asks for are run in turn."""
        if not self.mcp:
            return await self._answer(task, llm, {})
        from agl_examples.bundled import mcp

        async with AsyncExitStack() as sessions:
            served = [await sessions.enter_async_context(mcp.opened(server)) for server in self.mcp]
            return await self._answer(task, llm, {name: one for one in served for name in one.schemas})

    async def _answer(self, task: Any, llm: LLM, served: Mapping[str, Tools]) -> str:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        of_set = task_set(task["set"]) if isinstance(task, Mapping) and "set" in task else None
        system = self.system_prompt if self.system_prompt is not None else of_set and of_set.system
        chosen = self.tools if self.tools is not None else of_set.tools if of_set else ()
        tools = {tool.__name__: tool for tool in chosen}
        question = str(task.get("question", task)) if isinstance(task, Mapping) else str(task)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
        asked: dict[str, Any] = {"model": llm.model, **llm.sampling_parameters}
        if tools or served:
            own = [tool_schema(tool) for tool in tools.values()]
            asked["tools"] = [*own, *(one.schemas[name] for name, one in served.items())]
        go_direct()  # also where no attempt runs, as in a script that asks a served policy
        http, key = DefaultAsyncHttpxClient(verify=_certificates()), llm.api_key or "none"
        with tagged(agent=self.name):
            async with AsyncOpenAI(base_url=llm.endpoint, api_key=key, http_client=http) as client:
                for _ in range(self.max_turns):
                    reply = await client.chat.completions.create(messages=messages, **asked)
                    said = reply.choices[0].message
                    messages.append(
                        said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
                    )
                    if not said.tool_calls:
                        break
                    for call in said.tool_calls:
                        result = await _run({**served, **tools}, call.function.name, call.function.arguments)
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return said.content or ""


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function as a tool of the OpenAI API. Raise :class:`UsageError` for a parameter whose type has
    no JSON form, or that is no named one.
    """
    try:
        hints, signature = get_type_hints(function), inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise UsageError(f"tool {function!r}: {error}") from None
    properties, required = {}, []
    for name, parameter in signature.parameters.items():
        kind = hints.get(name, str)
        kind = getattr(kind, "__origin__", kind)
        if (
            parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            or kind not in _JSON
        ):
            known = ", ".join(one.__name__ for one in _JSON)
            raise UsageError(f"tool {function.__name__}: parameter {name!r} must be a named one of {known}")
        properties[name] = {"type": _JSON[kind]}
        if parameter.default is parameter.empty:
            required.append(name)
    about = {"name": function.__name__, "description": inspect.getdoc(function) or function.__name__}
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {**about, "parameters": parameters}}


@cache
def _certificates() -> ssl.SSLContext:
    """The trusted certificates, read once: reading takes longer than all the rest of a client."""
    return ssl.create_default_context()


async def _run(tools: Mapping[str, Callable[..., Any] | Tools], name: str, arguments: str) -> str:
    """Run a tool that the model asked for. A wrong call is answered with the error, as a text."""
    if name not in tools:
        return f"error: there is no tool {name!r}; the tools are {', '.join(tools)}"
    try:
        tool, given = tools[name], json.loads(arguments)
        if not callable(tool):
            text, failed = await tool.call(name, given)
            return f"error: {text}" if failed else text
        result = tool(**given)
        return str(await result if inspect.isawaitable(result) else result)
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


solve = Agent("assistant")
"""The agent of runs that name none: it answers tasks of the bundled sets."""
