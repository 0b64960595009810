"""Record tool calls with their arguments and results, for frameworks whose own spans leave these out.

Such a framework's ``execute_tool`` span has the tool's name and the call's id, and ends before the result is
known. :func:`tool_call` holds that span back, completes it, and delivers it at the end of the block. A call
that reaches no tool (malformed arguments, an unknown name) gets a span of its own.
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
from agentlightning.capture.delivery import deliver, identity_attributes, new_span
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
    """The text that the agent gets; ``None``: the call returned nothing."""
    failed: bool = False
    start: float = field(default_factory=time.time)
    span: Span | None = None
    """The framework's own span, once it has ended."""


PENDING: Final = ContextEntry[PendingToolCall]("agl-tool-call")


def hold_span(span: Span) -> bool:
    """Hold back the framework's span of the pending tool call. Return ``False`` for any other span."""
    call = PENDING.get()
    if call is None or span.attributes.get(semconv.TOOL_CALL_ID) != call.call_id:
        return False
    call.span = span
    return True


@contextmanager
def tool_call(name: str, call_id: str, arguments: str) -> Iterator[PendingToolCall]:
    """Deliver the span of one call at the end of the block, in which the framework executes the call."""
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
            span = call.span or _new_span(context, call)
            span.attributes[semconv.TOOL_CALL_ARGUMENTS] = call.arguments
            if call.result is not None:
                span.attributes[semconv.TOOL_CALL_RESULT] = call.result
            if call.failed:
                span.status, span.status_message = "error", (call.result or "")[:2000]
            deliver(context, span)


def _new_span(context: AttemptContext, call: PendingToolCall) -> Span:
    attributes = {
        semconv.OPERATION_NAME: "execute_tool",
        semconv.TOOL_NAME: call.name,
        semconv.TOOL_CALL_ID: call.call_id,
        **identity_attributes(context, caller_tags()),
    }
    parent = parent_ids(context.attempt_id)
    return new_span(context, f"execute_tool {call.name}", parent, attributes, start=call.start)
