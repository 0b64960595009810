"""Record agents' turns and their tool calls as spans, current while their code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]


async def run(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.run``, a coroutine function: the span is around the ``await``."""
    with AgentSpan.for_agent(agent.name).run():
        return await wrapped(*args, **kwargs)


def stream(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.stream``, an async generator: use ``wrap_stream``, never ``yield`` inside ``run()``."""
    return AgentSpan.for_agent(agent.name).wrap_stream(wrapped(*args, **kwargs), begin=True)


async def call_tool(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent._call_tool(call)``. Record the arguments as the model wrote them, not parsed."""
    call = kwargs["call"] if "call" in kwargs else args[0]
    with AgentSpan.for_tool(call.function.name, call.id, call.function.arguments).run() as span:
        result = await wrapped(*args, **kwargs)
        span.set_result(result.text, failed=result.failed)
        return result
