"""Record tool calls as spans, from CrewAI's event bus.

Handlers of the bus run later, on other threads; ``emit`` itself runs in the tool's thread. So the adapter
wraps ``emit``, and a tool's span is the current one while the tool runs. Invariant: each span ends, with the
tool's last event or, as an error, with its agent's execution.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextvars import Token
from typing import Any, Final

from opentelemetry import context as otel
from opentelemetry.trace import Status, StatusCode

from agentlightning.capture.context import ContextEntry, attached, detach
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.identity import caller_context
from agentlightning.capture.spans import AgentSpan

_LOG = logging.getLogger(__name__)

UNPAIRED = "crewai-tool-event-unpaired"
"""Count of tool calls that ended without an event of their beginning."""

Tools = dict[str, tuple[AgentSpan, Token[otel.Context]]]
"""Tool calls in progress, by the id of their first event: the span, and the token that detaches it."""
TOOLS: Final = ContextEntry[Tools]("agl-crewai-tools")
"""The tool calls in progress of the agent's execution."""
_OUTSIDE: Final[Tools] = {}
"""The tool calls in progress outside any agent's execution."""
_REQUESTED: Final = ContextEntry[list[tuple[str, str]]]("agl-crewai-requested")
"""The call that the model asked for, id and arguments as it wrote them, until its span has begun."""


def call(wrapped: Callable[..., Any], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``AgentExecutor._execute_single_native_tool_call``. It keeps the call's id and its arguments as
    text, which the events lack."""
    from crewai.utilities.agent_utils import extract_tool_call_info

    info = extract_tool_call_info(kwargs["tool_call"] if "tool_call" in kwargs else args[0])
    requested = [(str(info[0]), info[2])] if info and isinstance(info[2], str) else None
    with attached(_REQUESTED.set(requested)):
        return wrapped(*args, **kwargs)


def emit(wrapped: Callable[..., Any], bus: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``CrewAIEventsBus.emit``, which gives the event its ids."""
    future = wrapped(*args, **kwargs)
    try:
        _observe(kwargs["event"] if "event" in kwargs else args[1])
    except Exception:
        COUNTS.add("crewai-event-error")
        _LOG.warning("an event of CrewAI's could not be recorded", exc_info=True)
    return future


def abandon(tools: Tools) -> None:
    """End the tool calls that are still open when the agent's execution ends."""
    for tool, _ in tools.values():
        if tool.span is not None:
            tool.span.set_status(Status(StatusCode.ERROR, "the tool call was broken off"))
        tool.end()
    tools.clear()


def _observe(event: Any) -> None:
    kind = event.type
    if kind == "tool_usage_started":
        _open_tools()[event.event_id] = _begin(event)
    elif kind == "tool_usage_finished":
        failure = getattr(event, "failure", None)
        _end(event, event.output, getattr(failure, "message", None))
    elif kind == "tool_usage_error":
        _end(event, event.error, str(event.error))
    elif kind == "tool_failure_detected" and isinstance(event.tool_args, str):
        _unreached(event)


def _open_tools() -> Tools:
    tools = TOOLS.get()
    return _OUTSIDE if tools is None else tools


def _span(event: Any) -> AgentSpan:
    if requested := _REQUESTED.get():
        call_id, arguments = requested.pop()
        return AgentSpan.for_tool(str(event.tool_name), call_id, arguments).start()
    given = event.tool_args
    arguments = given if isinstance(given, str) else json.dumps(given, default=str)
    return AgentSpan.for_tool(str(event.tool_name), None, arguments).start()


def _begin(event: Any) -> tuple[AgentSpan, Token[otel.Context]]:
    span = _span(event)
    return span, otel.attach(caller_context(span.tags, span.span))


def _end(event: Any, result: Any, error: str | None) -> None:
    tool, token = _open_tools().pop(event.started_event_id or "", (None, None))
    if tool is None or token is None:
        COUNTS.add(UNPAIRED)
        return
    _finish(tool, result, error)
    detach(token)


def _unreached(event: Any) -> None:
    """Record a call whose arguments are no JSON: no tool runs, and this is the only event of the call."""
    _finish(_span(event), event.failure.message, event.failure.message)


def _finish(tool: AgentSpan, result: Any, error: str | None) -> None:
    tool.set_result(str(result))
    if error is not None and tool.span is not None:
        tool.span.set_status(Status(StatusCode.ERROR, error[:2000]))
    tool.end()
