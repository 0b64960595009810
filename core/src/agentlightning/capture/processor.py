"""Take the spans that frameworks make: give each its attempt, its agent's name, and hand it to the sink.

The processor is added beside the user's own and touches nothing but attributes. It ignores spans of the
scopes in :data:`IGNORED_SCOPES`, which are internal to a framework. Invariant: a span belongs to the attempt
it *began* in, whichever thread ends it. A span that began outside any attempt is counted and dropped.

The ``execute_tool`` spans of some frameworks have the tool's name and the call's id, and end before the
result is known. :func:`tool_call` holds such a span back, completes it with arguments and result, and
delivers it at the end of the block. A call that reaches no tool (malformed arguments, an unknown name) gets a
span of its own. Invariant: a call leaves one span, and none outside an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span as LiveSpan, SpanProcessor

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, ContextEntry, attached, current_attempt
from agentlightning.capture.delivery import COUNTS, deliver, identity_attributes, new_span
from agentlightning.capture.identity import caller_tags, current_span, framework_tags, parent_ids, span_agent
from agentlightning.capture.records import convert
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


IGNORED_SCOPES: set[str] = set()
"""Instrumentation scopes whose spans are not recorded; adapters add and remove theirs."""


class _Live(NamedTuple):
    """A live span that began in an attempt."""

    span: LiveSpan
    owner: AttemptContext
    tool: str | None
    """The tool that runs around it."""


_live: dict[int, _Live] = {}
"""Live spans, by the identity of their contexts. Ids would not do: OpenTelemetry draws them from the global
``random``, so that agents who seed it get the same trace and span ids in every rollout.
"""


def unfinished_spans() -> int:
    """Return the number of live spans that began in an attempt."""
    return len(_live)


class AttemptProcessor(SpanProcessor):
    """Stamps and delivers the spans of attempts. ``active`` switches it off, because OpenTelemetry cannot
    remove a processor.
    """

    active = True

    def on_start(self, span: LiveSpan, parent_context: Context | None = None) -> None:
        """Remember the attempt; add its ids, and the caller's agent to a span that names none.

        The caller is read now: some frameworks name an agent only after its span began.
        """
        if not self.active or _ignored(span):
            return
        parent = _parent(parent_context)
        owner = current_attempt() or (parent.owner if parent else None)
        if owner is None:
            return
        _live[id(span.get_span_context())] = _Live(span, owner, _tool_around(parent))
        span.set_attribute(semconv.ROLLOUT_ID, owner.rollout_id)
        span.set_attribute(semconv.ATTEMPT_ID, owner.attempt_id)
        name = framework_tags(parent_context).get("agent") or (span_agent(parent.span) if parent else None)
        if name and semconv.AGENT_NAME not in (span.attributes or {}):
            span.set_attribute(semconv.AGENT_NAME, name)

    def on_end(self, span: ReadableSpan) -> None:
        """Deliver the span, or count it."""
        began = _live.pop(id(span.context), None)
        if not self.active or _ignored(span):
            return
        if began is None:
            COUNTS.add("span-outside-attempt")
            return
        finished = convert(span, began.owner)
        if _repeats(finished, began.tool):
            for name in (semconv.OPERATION_NAME, semconv.TOOL_NAME):
                finished.attributes.pop(name, None)
        if not hold_span(finished):
            deliver(began.owner, finished)


def _parent(context: Context | None) -> _Live | None:
    """Return the live span that is current in ``context``: the span itself, in threads without our context
    too, or one that a message named by its ids, as those to an MCP server do.
    """
    own = trace.get_current_span(context).get_span_context()
    if (known := _live.get(id(own))) is not None or not own.is_remote:
        return known
    ids = own.trace_id, own.span_id
    live = ((one, one.span.get_span_context()) for one in list(_live.values()))
    return next((one for one, known in live if (known.trace_id, known.span_id) == ids), None)


def _tool_around(parent: _Live | None) -> str | None:
    """Return the name of the tool that runs here; ``None`` outside tools."""
    for span in (current_span(), *([parent.span] if parent else [])):
        attributes = getattr(span, "attributes", None) or {}
        operation = attributes.get(semconv.OPERATION_NAME)
        if operation == "execute_tool":
            return str(attributes.get(semconv.TOOL_NAME) or "")
        if operation == "invoke_agent":  # whose tools are its own, also where it is a tool itself
            return None
    return parent.tool if parent else None


def _repeats(span: Span, around: str | None) -> bool:
    """Whether a span is of the run of a tool that the span around it has recorded: of an MCP client or server
    below a framework's tool, say, or of another instrumentation. It stays, and is no second tool call.
    """
    if around is None or span.attributes.get(semconv.OPERATION_NAME) != "execute_tool":
        return False
    name = str(span.attributes.get(semconv.TOOL_NAME) or "")
    before = around.removesuffix(name)  # frameworks put a server's name before that of its tool: calc_add
    return before != around and not before[-1:].isalnum()


def _ignored(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name in IGNORED_SCOPES
