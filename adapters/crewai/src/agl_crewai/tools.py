"""Tool calls as spans, from CrewAI's event bus.

Handlers of the bus run on other threads, some time later; ``emit`` itself runs where the tool does. So the
adapter listens there, and a tool's span is the current one while the tool runs. Invariant: a span that was
begun is ended: by the tool's last event, else as an error when its agent's execution ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from opentelemetry import context as otel, trace
from opentelemetry.trace import Status, StatusCode

from agentlightning import semconv
from agentlightning.capture.counts import COUNTS
from agl_crewai.identity import SCOPE, Scope, Tool

_LOG = logging.getLogger(__name__)

UNPAIRED = "crewai-tool-event-unpaired"
"""Counted: the end of a tool call of which no beginning was seen here."""

_HERE: ContextVar[str | None] = ContextVar("agl_crewai_tool", default=None)
_REQUESTED: ContextVar[list[tuple[str, str]] | None] = ContextVar("agl_crewai_asked", default=None)
"""The call that the model asked for, id and arguments as it wrote them, until its span has begun."""


def call(wrapped: Callable[..., Any], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``AgentExecutor._execute_single_native_tool_call``: the events have the arguments parsed, and no
    id."""
    from crewai.utilities.agent_utils import extract_tool_call_info

    info = extract_tool_call_info(kwargs["tool_call"] if "tool_call" in kwargs else args[0])
    token = _REQUESTED.set([(str(info[0]), info[2])] if info and isinstance(info[2], str) else None)
    try:
        return wrapped(*args, **kwargs)
    finally:
        _REQUESTED.reset(token)


def emit(wrapped: Callable[..., Any], bus: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``CrewAIEventsBus.emit``; the event has its ids when that returns."""
    future = wrapped(*args, **kwargs)
    try:
        _observe(kwargs["event"] if "event" in kwargs else args[1])
    except Exception:
        COUNTS.add("crewai-event-error")
        _LOG.warning("an event of CrewAI's could not be recorded", exc_info=True)
    return future


def abandon(scope: Scope) -> None:
    """End what is still open: whatever stopped the agent stopped its tools too."""
    for tool in scope.tools.values():
        tool.span.set_status(Status(StatusCode.ERROR, "the tool call was broken off"))
        tool.span.end()
    scope.tools.clear()


def _observe(event: Any) -> None:
    kind = event.type
    if kind == "tool_usage_started":
        SCOPE.get().tools[event.event_id] = _begin(event)
    elif kind == "tool_usage_finished":
        failure = getattr(event, "failure", None)
        _end(event, event.output, getattr(failure, "message", None))
    elif kind == "tool_usage_error":
        _end(event, event.error, str(event.error))
    elif kind == "tool_failure_detected" and isinstance(event.tool_args, str):
        _unreached(event)


def _span(event: Any) -> trace.Span:
    attributes = {semconv.OPERATION_NAME: "execute_tool", semconv.TOOL_NAME: str(event.tool_name)}
    if requested := _REQUESTED.get():
        attributes[semconv.TOOL_CALL_ID], attributes[semconv.TOOL_CALL_ARGUMENTS] = requested.pop()
    else:
        given = event.tool_args
        text = given if isinstance(given, str) else json.dumps(given, default=str)
        attributes[semconv.TOOL_CALL_ARGUMENTS] = text
    if (agent := SCOPE.get().agent) is not None:
        attributes[semconv.AGENT_NAME] = agent
    return trace.get_tracer("agl_crewai").start_span(f"execute_tool {event.tool_name}", attributes=attributes)


def _begin(event: Any) -> Tool:
    span = _span(event)
    return Tool(span, otel.attach(trace.set_span_in_context(span)), _HERE.set(event.event_id))


def _end(event: Any, result: Any, error: str | None) -> None:
    tool = SCOPE.get().tools.pop(event.started_event_id or "", None)
    if tool is None:
        COUNTS.add(UNPAIRED)
        return
    _finish(tool.span, result, error)
    try:
        _HERE.reset(tool.mine)
    except ValueError:
        return  # it began in another thread or task, whose context is not ours to change
    otel.detach(tool.before)


def _unreached(event: Any) -> None:
    """Arguments that are no JSON: the model is told, no tool is run, and no other event says so."""
    _finish(_span(event), event.failure.message, event.failure.message)


def _finish(span: trace.Span, result: Any, error: str | None) -> None:
    span.set_attribute(semconv.TOOL_CALL_RESULT, str(result))
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error[:2000]))
    span.end()
