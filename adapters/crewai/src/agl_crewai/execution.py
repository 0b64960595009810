"""Record each execution of an agent as a span, and count summarised history."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentlightning import semconv
from agentlightning.capture.context import attached, current_attempt, tagged
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.emit import INPUT, OUTPUT, recorded_operation
from agentlightning.capture.identity import framework_tags
from agentlightning.capture.spans import AgentSpan
from agl_crewai.tools import TOOLS, Tools, abandon

_LOG = logging.getLogger(__name__)
Wrapped = Callable[..., Any]

SUMMARISED = "crewai-history-summarised"
"""Count of the times when CrewAI replaced a conversation's history by a summary."""


@contextmanager
def _executing(agent: Any, task: Any) -> Iterator[None]:
    """Record that an agent works on ``task`` within the block (``None``: on a message of its own)."""
    tags, tools = {}, Tools()
    if getattr(task, "name", None):
        tags["node"] = str(task.name)
    if getattr(getattr(agent, "crew", None), "manager_agent", None) is agent:
        tags["role"] = "manager"
    span = AgentSpan.for_agent(str(agent.role).strip(), **tags)
    span.attributes = {semconv.PROVIDER_NAME: "crewai", semconv.AGENT_ID: str(agent.id)}
    with span.run(), attached(TOOLS.set(tools)):
        try:
            yield
        finally:
            abandon(tools)


def execute(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.execute_task``."""
    with _executing(agent, kwargs["task"] if "task" in kwargs else args[0]):
        return wrapped(*args, **kwargs)


async def aexecute(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.aexecute_task``."""
    with _executing(agent, kwargs["task"] if "task" in kwargs else args[0]):
        return await wrapped(*args, **kwargs)


def kickoff(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.kickoff``, which on a running loop only returns the coroutine of ``kickoff_async``."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _executing(agent, None):
            return wrapped(*args, **kwargs)
    return wrapped(*args, **kwargs)


async def akickoff(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.kickoff_async``."""
    with _executing(agent, None):
        return await wrapped(*args, **kwargs)


def summarise(wrapped: Wrapped, llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``BaseLLM.summarize_messages``, which CrewAI calls after a refused prompt, or before a prompt
    that might be too long.
    """
    if current_attempt() is None:
        return wrapped(*args, **kwargs)
    if SUMMARISED not in COUNTS.snapshot():
        _LOG.warning(
            "CrewAI summarises the history of agent %r, because its prompt is longer than the model takes: "
            "the calls that follow do not extend the earlier ones. Serve a longer context, say in the LLM's "
            "get_context_window_size() what it is, or shorten the task",
            framework_tags().get("agent"),
        )
    COUNTS.add(SUMMARISED)
    messages = kwargs["messages"] if "messages" in kwargs else args[0]
    about: dict[str, Any] = {INPUT: {"messages": len(messages)}}
    with recorded_operation("summarise-history", about), tagged(phase="summary"):
        wrapped(*args, **kwargs)
        about[OUTPUT] = {"messages": len(messages)}
