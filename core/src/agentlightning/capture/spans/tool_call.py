"""Tool calls with their arguments and results, for frameworks whose own spans leave these out.

Such a framework's ``execute_tool`` span has the tool's name and the call's id, and ends before the result is
known. Inside :func:`tool_call` that span is held back, completed, and delivered at the end of the block; a
call that reaches no tool (malformed arguments, an unknown name) gets a span here.
Invariant: a call leaves one span, and none outside an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, ContextEntry, attached, current_attempt
from agentlightning.capture.delivery import deliver, new_span
from agentlightning.capture.identity import caller_tags, parent_ids
from agentlightning.types import Span


@dataclass(slots=True)
class PendingToolCall:
    """A tool call in progress. Set ``result`` and ``failed`` once they are known."""

    name: str
    call_id: str
    arguments: str
    """As the model wrote them."""
    result: str | None = None
    """The text that the agent was given; ``None``: the call returned nothing."""
    failed: bool = False
    start: float = field(default_factory=time.time)
    span: Span | None = None
    """The framework's own span, once that has ended."""


PENDING: Final = ContextEntry[PendingToolCall]("agl-tool-call")


def hold_span(span: Span) -> bool:
    """Hold back the framework's span of the pending tool call; ``False`` for any other span."""
    call = PENDING.get()
    if call is None or span.attributes.get(semconv.TOOL_CALL_ID) != call.call_id:
        return False
    call.span = span
    return True


@contextmanager
def tool_call(name: str, call_id: str, arguments: str) -> Iterator[PendingToolCall]:
    """Around the framework's execution of one call; its span is delivered at the end of the block."""
    context = current_attempt()
    call = PendingToolCall(name, call_id, arguments)
    if context is None:
        yield call
        return
    try:
        with attached(PENDING.set(call)):
            yield call
    finally:
        if call.span is not None or call.result is not None:
            deliver(context, _completed(call.span or _new_span(context, call), call))


def _completed(span: Span, call: PendingToolCall) -> Span:
    span.attributes[semconv.TOOL_CALL_ARGUMENTS] = call.arguments
    if call.result is not None:
        span.attributes[semconv.TOOL_CALL_RESULT] = call.result
    if call.failed:
        span.status, span.status_message = "error", (call.result or "")[:2000]
    return span


def _new_span(context: AttemptContext, call: PendingToolCall) -> Span:
    attributes = {
        semconv.OPERATION_NAME: "execute_tool",
        semconv.TOOL_NAME: call.name,
        semconv.TOOL_CALL_ID: call.call_id,
        semconv.ROLLOUT_ID: context.rollout_id,
        semconv.ATTEMPT_ID: context.attempt_id,
        semconv.AGENT_NAME: caller_tags().get("agent"),
    }
    parent = parent_ids(context.attempt_id)
    return new_span(context, f"execute_tool {call.name}", parent, attributes, start=call.start)
