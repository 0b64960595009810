"""Record agents' turns as spans, current while their code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]


def run(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``MultiStepAgent.run``, which does the work, or with ``stream=True`` makes a generator."""
    if current_attempt() is None:
        return wrapped(*args, **kwargs)
    span = AgentSpan.for_agent(str(agent.name or type(agent).__name__))
    if kwargs.get("stream", args[1] if len(args) > 1 else False):
        return span.wrap_generator(wrapped(*args, **kwargs), begin=True)
    with span.run():
        return wrapped(*args, **kwargs)
