"""Span processors: every span of an attempt gets its ids and its agent's name, and reaches its sink.

They are added beside the user's own processors and touch nothing but attributes. Spans of the scopes in
:data:`IGNORED_SCOPES` are internal to a framework and are ignored. Invariant: a span belongs to the attempt
it *began* in, whichever thread ends it; one that began in none is counted and dropped.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span as LiveSpan, SpanProcessor

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, current_attempt
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.delivery import deliver
from agentlightning.capture.identity import framework_tags
from agentlightning.capture.spans.convert import convert
from agentlightning.capture.spans.tool_call import hold_span

IGNORED_SCOPES: set[str] = set()
"""Instrumentation scopes whose spans are not recorded; adapters add and remove theirs."""

_attempt_by_span: dict[int, AttemptContext] = {}
"""Span id → the attempt it began in, for spans under way. One entry a live span, removed at its end."""


def unfinished_spans() -> int:
    """How many spans of attempts are under way."""
    return len(_attempt_by_span)


def _attempt_of(parent: Context | None) -> AttemptContext | None:
    """The attempt of the running code, else that of the parent span (threads without our context)."""
    return current_attempt() or _attempt_by_span.get(
        trace.get_current_span(parent).get_span_context().span_id
    )


def _ignored(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name in IGNORED_SCOPES


class SwitchableProcessor(SpanProcessor):
    """A processor that can be switched off, because OpenTelemetry cannot remove one."""

    active = True

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is buffered."""
        return True


class StampProcessor(SwitchableProcessor):
    """Adds rollout and attempt ids to every span, and the caller's agent to a span that names none."""

    def on_start(self, span: LiveSpan, parent_context: Context | None = None) -> None:
        """The caller is read now: some frameworks name an agent only after its span began."""
        if not self.active or _ignored(span) or (owner := _attempt_of(parent_context)) is None:
            return
        span.set_attribute(semconv.ROLLOUT_ID, owner.rollout_id)
        span.set_attribute(semconv.ATTEMPT_ID, owner.attempt_id)
        name = framework_tags(parent_context).get("agent")
        if name and semconv.AGENT_NAME not in (span.attributes or {}):
            span.set_attribute(semconv.AGENT_NAME, name)


class DeliverProcessor(SwitchableProcessor):
    """Hands finished spans to the sink of the attempt they began in."""

    def on_start(self, span: LiveSpan, parent_context: Context | None = None) -> None:
        """Remember the attempt."""
        if self.active and not _ignored(span) and (owner := _attempt_of(parent_context)) is not None:
            _attempt_by_span[span.get_span_context().span_id] = owner

    def on_end(self, span: ReadableSpan) -> None:
        """Deliver, or count."""
        owner = _attempt_by_span.pop(span.context.span_id, None) if span.context else None
        if not self.active or _ignored(span):
            return
        if owner is None:
            COUNTS.add("span-outside-attempt")
            return
        finished = convert(span, owner)
        if not hold_span(finished):
            deliver(owner, finished)
