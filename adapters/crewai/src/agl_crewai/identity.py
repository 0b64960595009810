"""Who is calling, in CrewAI's own terms: the agent that executes, and the task it works on.

An agent's execution is a scope in its own thread or task. Core reads the agent's name from the span of that
scope; the scope adds what the span does not say.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace

from agentlightning.capture.identity import span_agent
from agentlightning.types import Tags


@dataclass(slots=True)
class Tool:
    """A tool call under way: its span, and what was current before it."""

    span: trace.Span
    before: Any
    """The token of OpenTelemetry's context."""
    mine: Any
    """The token of ``_HERE``: valid only where the tool call began."""


@dataclass(slots=True)
class Scope:
    """One execution of an agent. ``tools``: its tool calls under way, by the id of their first event."""

    agent: str | None = None
    tags: Tags = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)


OUTSIDE = Scope()
"""Where no agent executes."""
SCOPE: ContextVar[Scope] = ContextVar("agl_crewai", default=OUTSIDE)


def scope_of(agent: Any, task: Any) -> Scope:
    """The scope of ``agent`` at work on ``task`` (``None``: on a message of its own)."""
    name, tags = str(agent.role).strip(), {}
    if getattr(task, "name", None):
        tags["node"] = str(task.name)
    if getattr(getattr(agent, "crew", None), "manager_agent", None) is agent:
        tags["role"] = "manager"
    return Scope(name, tags)


def identity() -> Tags:
    """``node`` (the task's name, if any), ``role`` for a manager, and ``agent`` where no span names one."""
    scope = SCOPE.get()
    if scope.agent is None or span_agent() is not None:
        return dict(scope.tags)
    return {"agent": scope.agent, **scope.tags}


def entry_methods(cls: type) -> Sequence[str]:
    """The methods that run an ``Agent`` of CrewAI's; ``()`` for other classes."""
    if "crewai" not in sys.modules:
        return ()
    from crewai import Agent

    return ("execute_task", "aexecute_task", "kickoff", "kickoff_async") if issubclass(cls, Agent) else ()
