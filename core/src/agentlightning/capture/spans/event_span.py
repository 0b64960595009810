"""Spans for frameworks that only send events when something begins and ends.

Their events come in other tasks and threads than the work itself, so nothing can be attached to a context: a
span knows its parent, and :data:`~agentlightning.capture.identity.CALLER_SOURCES` finds it from the work.
Invariant: a span belongs to the attempt it began in, and is delivered at most once, when it has a title.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Self

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import attempt_trace_id, deliver, identity_attributes, new_span
from agentlightning.capture.identity import CALLER, Caller, RemoteParentSpan, span_number, tags_of
from agentlightning.capture.spans.convert import describe_error
from agentlightning.types import Tags


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class EventSpan:
    """A span that begins when it is made. Its parent is ``parent`` or OpenTelemetry's current span, whichever
    is nearer; it has the tags of the caller there.
    """

    context: AttemptContext
    parent: Self | None = None
    title: str | None = None
    """The span's name. ``None``: the span is not recorded, and its children get its parent."""
    attributes: dict[str, Any] = field(default_factory=dict)
    tags: Tags = field(default_factory=dict)
    trace_id: str = field(init=False)
    parent_id: str | None = field(init=False, default=None)
    otel_parent: int = field(init=False, default=0)
    """Id of OpenTelemetry's current span when this span began; one that became current later is nearer."""
    outer: Caller | None = field(init=False, default_factory=CALLER.get)
    """The caller in OpenTelemetry's context when this span began; one that was named later is nearer."""
    span_id: str = field(init=False, default_factory=lambda: secrets.token_hex(8))
    start: float = field(init=False, default_factory=time.time)

    def __post_init__(self) -> None:
        live = trace.get_current_span()
        above = live.get_span_context()
        if self.parent is not None and self.parent.sees_no_nearer_span(live):
            self.otel_parent, self.trace_id = self.parent.otel_parent, self.parent.trace_id
            self.parent_id = self.parent.child_parent_id
        elif above.is_valid:
            self.otel_parent, self.trace_id = above.span_id, f"{above.trace_id:032x}"
            self.parent_id = f"{above.span_id:016x}"
        else:
            self.trace_id = attempt_trace_id(self.context.attempt_id)
        around = None if self.parent is None else self.parent.caller()
        if around is None or not around.is_within(self.outer):
            around = self.outer
        self.tags = {**tags_of(around, live), **self.tags}

    @property
    def child_parent_id(self) -> str | None:
        """The parent id of spans inside."""
        return self.span_id if self.title else self.parent_id

    @property
    def tool(self) -> str | None:
        """The name of the tool that runs here; ``None`` outside tools."""
        if self.attributes.get(semconv.OPERATION_NAME) == "execute_tool":
            return str(self.attributes.get(semconv.TOOL_NAME) or "")
        return self.parent.tool if self.parent is not None and not self.title else None

    def sees_no_nearer_span(self, span: trace.Span) -> bool:
        """Return whether ``span``, OpenTelemetry's current one, became current before this span began, or one
        above it."""
        number = span_number(span)
        here = number == self.otel_parent or f"{number:016x}" == self.child_parent_id
        return here or (self.parent is not None and self.parent.sees_no_nearer_span(span))

    def is_within(self, other: Self) -> bool:
        """Return whether this is ``other`` or a part of it."""
        return self is other or (self.parent is not None and self.parent.is_within(other))

    def caller(self) -> Caller:
        """Return the caller of the code inside. Where OpenTelemetry's current span is nearer, that span is
        the parent, and names the agent if it can.
        """
        live = trace.get_current_span()
        if not self.sees_no_nearer_span(live):
            return Caller(self.tags, 0, outer=self.outer)
        parent = None
        if self.child_parent_id is not None:
            agent = self.tags.get("agent")
            number = int(self.child_parent_id, 16)
            parent = RemoteParentSpan(int(self.trace_id, 16), number, agent, self.tool)
        return Caller(self.tags, span_number(live), parent, self.outer)

    def end(self, error: BaseException | None = None, *, failed: str | None = None) -> None:
        """Deliver the span if it has a title. ``failed``: the message of a failure that raised nothing."""
        if self.title is None:
            return
        if error is not None:
            failed = describe_error(error)
            self.attributes[semconv.EXCEPTION_TYPE] = type(error).__name__
        span = new_span(
            self.context,
            self.title,
            (self.trace_id, self.parent_id),
            {**self.attributes, **identity_attributes(self.context, self.tags)},
            span_id=self.span_id,
            start=self.start,
            error=failed,
        )
        deliver(self.context, span)
