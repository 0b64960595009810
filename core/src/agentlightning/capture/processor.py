"""Take the spans that frameworks make: give each its attempt, its agent's name, and hand it to the sink.

The processor is added beside the user's own and touches nothing but attributes. It ignores spans of the
scopes in :data:`.IGNORED_SCOPES`, which are internal to a framework. Invariant: a span belongs to the attempt
it *began* in, whichever thread ends it. A span that began outside any attempt is counted and dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span as LiveSpan, SpanProcessor

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, current_attempt
from agentlightning.capture.delivery import COUNTS, IGNORED_SCOPES, deliver, hold_span
from agentlightning.capture.identity import current_span, framework_tags, span_agent
from agentlightning.capture.records import convert
from agentlightning.types import Span


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
