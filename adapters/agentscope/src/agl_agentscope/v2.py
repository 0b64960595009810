"""AgentScope 2: wrap the three methods of an agent that its middleware wraps, too.

So the adapter covers agents made before instrumentation, and no agent holds an object of ours. The adapter
also stops the clock: AgentScope writes the time into prompts, so that the samples of one task would answer
different prompts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan

_LOG = logging.getLogger(__name__)
NO_TIME = "withheld"
"""The text in a rollout's prompts in place of the time."""


def patch_all(adapter: AdapterInstrumentor) -> None:
    """Patch agents, tools and the clock."""
    from agentscope.agent import Agent

    adapter.patch(Agent, "_reply", _reply)
    missing = "agentscope-tool-spans-unavailable"
    adapter.patch_private(Agent, "_execute_tool_call", _execute_tool_call, missing)
    if hasattr(Agent, "_inject_runtime_state"):
        adapter.patch(Agent, "_inject_runtime_state", _inject_runtime_state)


def _reply(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    replies = wrapped(*args, **kwargs)
    if current_attempt() is None:
        return replies
    return AgentSpan.for_agent(str(agent.name)).wrap_stream(replies, begin=True)


def _execute_tool_call(
    wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    events = wrapped(*args, **kwargs)
    if current_attempt() is None:
        return events
    call = kwargs["tool_call"] if "tool_call" in kwargs else args[0]
    span, text = AgentSpan.for_tool(str(call.name), str(call.id), str(call.input)), list[str]()

    def read(event: Any) -> None:
        """A call that waits for a person's consent has not started: it has no span yet."""
        kind = str(getattr(event.type, "value", event.type))
        if kind == "TOOL_RESULT_START":
            span.start()
        elif kind == "TOOL_RESULT_TEXT_DELTA":
            text.append(event.delta)
        elif kind == "TOOL_RESULT_END":
            span.set_result("".join(text), failed=str(event.state) not in ("success", "running"))

    return span.wrap_stream(events, on_item=read)


async def _inject_runtime_state(
    wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncGenerator[Any, None]:
    """Put :data:`NO_TIME` in place of the time within a rollout, and let the reminder come once."""
    config = agent.injection_config
    stopped = current_attempt() is not None and config.inject_runtime_state
    if stopped:
        _warn_once()
        agent.injection_config = config.model_copy(
            update={"time_format": NO_TIME, "time_interval": math.inf}  # a format without a field is itself
        )
    try:
        async for event in wrapped(*args, **kwargs):
            yield event
    finally:
        if stopped:
            agent.injection_config = config


def _warn_once() -> None:
    if not _warned:
        _warned.append(True)
        _LOG.warning(
            "AgentScope writes the time into every prompt; in rollouts the reminder says %r instead, so that "
            "the samples of a task answer one prompt (InjectionConfig(inject_runtime_state=False) leaves the "
            "reminder out)",
            NO_TIME,
        )


_warned: list[bool] = []
