"""Record agents' turns as spans, current while their code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]


def stream(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.stream_async``, an async generator that calling an agent, swarms and graphs read too."""
    events = wrapped(*args, **kwargs)
    if current_attempt() is None:
        return events
    return AgentSpan.for_agent(str(agent.name)).wrap_stream(events, begin=True)


def structured(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.structured_output_async``, which asks the model itself; its blocking form calls it."""
    return AgentSpan.for_agent(str(agent.name)).wrap_awaitable(wrapped(*args, **kwargs))
