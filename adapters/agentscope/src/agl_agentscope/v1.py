"""AgentScope 1.0: wrap the call and the reply of an agent, and the toolkit that every tool call passes.

AgentScope's class hooks do not suffice: of several tool calls at once only the first runs them, and no hook
learns of a step that failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.context import current_attempt
from agentlightning.capture.identity import framework_tags
from agentlightning.capture.spans import AgentSpan

_FAILURES = (
    "Error: ",
    "Error occurred when calling MCP tool",
    "FunctionNotFoundError",
    "FunctionInactiveError",
)
"""The beginnings of a toolkit's answer that mean failure; nothing else marks it."""


def patch_all(adapter: AdapterInstrumentor) -> None:
    """Patch agents and tools. Programs call an agent, which calls its ``reply``, or this directly."""
    from agentscope.agent import AgentBase
    from agentscope.tool import Toolkit

    adapter.patch(AgentBase, "__call__", _reply)
    adapter.patch_overrides(AgentBase, lambda cls: {"reply"} & vars(cls).keys(), _reply)
    adapter.patch(Toolkit, "call_tool_function", _call_tool)


async def _reply(
    wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    name = str(getattr(agent, "name", None) or type(agent).__name__)
    if framework_tags().get("agent") == name:  # within a turn of the agent
        return await wrapped(*args, **kwargs)
    with AgentSpan.for_agent(name).run():
        return await wrapped(*args, **kwargs)


async def _call_tool(
    wrapped: Callable[..., Any], toolkit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if current_attempt() is None:
        return await wrapped(*args, **kwargs)
    call = kwargs["tool_call"] if "tool_call" in kwargs else args[0]
    arguments = call.get("raw_input") or json.dumps(call.get("input") or {}, ensure_ascii=False, default=str)
    span = AgentSpan.for_tool(str(call["name"]), str(call["id"]), arguments).start()
    try:
        with span.activate():
            answers = await wrapped(*args, **kwargs)
    except BaseException as error:
        span.set_error(error)
        span.end()
        raise

    def read(answer: Any) -> None:
        """Each answer has all of the text so far: the last text is the result."""
        text = "".join(str(block.get("text", "")) for block in answer.content)
        span.set_result(text, failed=text.startswith(_FAILURES))

    return span.wrap_stream(answers, on_item=read)
