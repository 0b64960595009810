"""Record the turns of agents that programs run by ``on_messages`` and ``on_messages_stream``.

AutoGen's own spans begin in ``run``, ``run_stream`` and in teams, which call these methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.identity import framework_tags
from agentlightning.capture.spans import AgentSpan


def entries_of(cls: type) -> set[str]:
    """Return the methods of an agent's class that run it."""
    return {"on_messages", "on_messages_stream"} & vars(cls).keys()


def on_messages(
    wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``on_messages`` and ``on_messages_stream`` of each agent's class, a coroutine function and an
    async generator function. Within a turn of the agent they are a part of it.
    """
    work = wrapped(*args, **kwargs)
    if current_attempt() is None or framework_tags().get("agent") == agent.name:
        return work
    span = AgentSpan.for_agent(str(agent.name))
    return span.wrap_stream(work, begin=True) if inspect.isasyncgen(work) else span.wrap_awaitable(work)
