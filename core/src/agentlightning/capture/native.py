"""Spans of frameworks that tell when something begins and ends, but never make it OpenTelemetry's current
span.

Their events come in other tasks and threads than the work itself, so nothing is attached to a context: a span
knows its parent, and :data:`~agentlightning.capture.identity.PARENTS` finds it from the work. Invariant: a
span belongs to the attempt it began in, and is delivered at most once, when it has a title.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Self

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.convert import described
from agentlightning.capture.delivery import deliver, trace_of
from agentlightning.capture.identity import Standing, span_agent
from agentlightning.types import Span, Tags, merge_tags


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class NativeSpan:
    """Something under way. It begins, as it is made, inside ``parent`` or OpenTelemetry's current span,
    whichever is nearer, with the tags of what it is in."""

    context: AttemptContext
    parent: Self | None = None
    title: str | None = None
    """The name of the span it leaves; ``None``: it leaves none, and what is inside hangs above it."""
    attributes: dict[str, Any] = field(default_factory=dict)
    tags: Tags = field(default_factory=dict)
    trace_id: str = field(init=False)
    parent_id: str | None = field(init=False, default=None)
    outer: int = field(init=False, default=0)
    """OpenTelemetry's current span when it began; another one later is nearer."""
    span_id: str = field(init=False, default_factory=lambda: secrets.token_hex(8))
    start: float = field(init=False, default_factory=time.time)

    def __post_init__(self) -> None:
        live = trace.get_current_span()
        above = live.get_span_context()
        inherited = self.parent.tags if self.parent is not None else {}
        if self.parent is not None and self.parent.holds(live):
            self.outer, self.trace_id = self.parent.outer, self.parent.trace_id
            self.parent_id = self.parent.anchor
        elif above.is_valid:
            self.outer, self.trace_id = above.span_id, f"{above.trace_id:032x}"
            self.parent_id = f"{above.span_id:016x}"
            inherited = merge_tags(inherited, {"agent": span_agent(live)})
        else:
            self.trace_id = trace_of(self.context.attempt_id)
        self.tags = {**inherited, **self.tags}

    @property
    def anchor(self) -> str | None:
        """The id of the span below which hangs what happens inside."""
        return self.span_id if self.title else self.parent_id

    def holds(self, span: trace.Span) -> bool:
        """Whether ``span``, OpenTelemetry's current one, was so before this began, here or above."""
        number = span.get_span_context().span_id
        here = number == self.outer or f"{number:016x}" == self.anchor
        return here or (self.parent is not None and self.parent.holds(span))

    def inside(self, other: Self) -> bool:
        """Whether this is ``other`` or a part of it."""
        return self is other or (self.parent is not None and self.parent.inside(other))

    def standing(self) -> trace.Span | None:
        """As the parent of what happens inside; ``None`` where OpenTelemetry's current span is nearer."""
        if self.anchor is None or not self.holds(trace.get_current_span()):
            return None
        return Standing(int(self.trace_id, 16), int(self.anchor, 16), self.tags.get("agent"))

    def known(self) -> Tags:
        """Its tags, without the agent where another framework's agent speaks inside."""
        live = trace.get_current_span()
        foreign = span_agent(live) is not None and not self.holds(live)
        return {key: value for key, value in self.tags.items() if not (foreign and key in ("agent", "role"))}

    def end(self, error: BaseException | None = None, *, failed: str | None = None) -> None:
        """Deliver the span, if it has a title. ``failed``: what went wrong where nothing was raised."""
        if self.title is None:
            return
        if error is not None:
            failed = f"{type(error).__name__}: {described(error)}"
            self.attributes[semconv.EXCEPTION_TYPE] = type(error).__name__
        rollout_id, attempt_id = self.context.rollout_id, self.context.attempt_id
        said = {semconv.AGENT_NAME: self.tags["agent"]} if "agent" in self.tags else {}
        said |= {semconv.ROLLOUT_ID: rollout_id, semconv.ATTEMPT_ID: attempt_id}
        span = Span(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            name=self.title,
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent_id,
            status="error" if failed else "ok",
            status_message=failed[:2000] if failed else None,
            attributes={
                **self.attributes,
                **{semconv.TAG_PREFIX + key: value for key, value in self.tags.items()},
                **said,
            },
            start_time=self.start,
            end_time=time.time(),
        )
        deliver(self.context, span)
