"""Tool calls with their arguments and results.

AutoGen's ``execute_tool`` span has the tool's name and the call's id, and ends before the result is known.
While an agent executes a tool call, that span waits here and is delivered completed. Calls that reach no tool
(malformed arguments, an unknown name) have no span of AutoGen's and get one here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, current_attempt
from agentlightning.capture.delivery import deliver, trace_of
from agentlightning.capture.identity import span_agent
from agentlightning.types import Span


class Waiting:
    """The tool call that the present task executes, and its span once that has ended."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.span: Span | None = None


_waiting: ContextVar[Waiting | None] = ContextVar("agl_autogen_tool", default=None)


def hold(context: AttemptContext, span: Span) -> bool:
    """A finisher of core's processor: keeps the span of the tool call under way."""
    waiting = _waiting.get()
    if waiting is None or span.attributes.get(semconv.TOOL_CALL_ID) != waiting.call_id:
        return False
    waiting.span = span
    return True


async def execute(
    wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``AssistantAgent._execute_tool_call``: returns the call and its result, as that does."""
    context = current_attempt()
    if context is None:
        return await wrapped(*args, **kwargs)
    call = kwargs["tool_call"] if "tool_call" in kwargs else args[0]
    waiting, start = Waiting(call.id), time.time()
    token = _waiting.set(waiting)
    try:
        executed = await wrapped(*args, **kwargs)
    except BaseException:
        if waiting.span is not None:
            deliver(context, _completed(waiting.span, call, None))
        raise
    finally:
        _waiting.reset(token)
    deliver(context, _completed(waiting.span or _unreached(context, call, start), call, executed[1]))
    return executed


def _completed(span: Span, call: Any, result: Any) -> Span:
    span.attributes[semconv.TOOL_CALL_ARGUMENTS] = call.arguments
    if result is not None:
        span.attributes[semconv.TOOL_CALL_RESULT] = str(result.content)
        if result.is_error:
            span.status, span.status_message = "error", str(result.content)[:2000]
    return span


def _unreached(context: AttemptContext, call: Any, start: float) -> Span:
    parent = trace.get_current_span().get_span_context()
    attributes = {
        semconv.OPERATION_NAME: "execute_tool",
        semconv.TOOL_NAME: call.name,
        semconv.TOOL_CALL_ID: call.id,
        semconv.ROLLOUT_ID: context.rollout_id,
        semconv.ATTEMPT_ID: context.attempt_id,
        semconv.AGENT_NAME: span_agent(),
    }
    return Span(
        rollout_id=context.rollout_id,
        attempt_id=context.attempt_id,
        name=f"execute_tool {call.name}",
        trace_id=f"{parent.trace_id:032x}" if parent.is_valid else trace_of(context.attempt_id),
        span_id=secrets.token_hex(8),
        parent_id=f"{parent.span_id:016x}" if parent.is_valid else None,
        attributes={key: value for key, value in attributes.items() if value is not None},
        start_time=start,
        end_time=time.time(),
    )
