"""Give every span of an attempt its ids and its agent's name, and hand it to the attempt's sink.

The processor is added beside the user's own and touches nothing but attributes. It ignores spans of the
scopes in :data:`IGNORED_SCOPES`, which are internal to a framework. Invariant: a span belongs to the attempt
it *began* in, whichever thread ends it. A span that began outside any attempt is counted and dropped.
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

_live: dict[int, tuple[trace.SpanContext, AttemptContext]] = {}
"""Identity of a live span's context → this context, and the attempt that the span began in. The span's end
removes its entry. Ids would not do: OpenTelemetry draws them from the global ``random``, so that agents who
seed it get the same trace and span ids in every rollout.
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
        if not self.active or _ignored(span) or (owner := _attempt_of(parent_context)) is None:
            return
        own = span.get_span_context()
        _live[id(own)] = own, owner
        span.set_attribute(semconv.ROLLOUT_ID, owner.rollout_id)
        span.set_attribute(semconv.ATTEMPT_ID, owner.attempt_id)
        name = framework_tags(parent_context).get("agent")
        if name and semconv.AGENT_NAME not in (span.attributes or {}):
            span.set_attribute(semconv.AGENT_NAME, name)

    def on_end(self, span: ReadableSpan) -> None:
        """Deliver the span, or count it."""
        _, owner = _live.pop(id(span.context), (None, None))
        if not self.active or _ignored(span):
            return
        if owner is None:
            COUNTS.add("span-outside-attempt")
            return
        finished = convert(span, owner)
        if not hold_span(finished):
            deliver(owner, finished)


def _attempt_of(parent: Context | None) -> AttemptContext | None:
    """Return the running code's attempt, else that of the parent span (threads without our context)."""
    _, owner = _live.get(id(trace.get_current_span(parent).get_span_context()), (None, None))
    return current_attempt() or owner


def _ignored(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name in IGNORED_SCOPES
