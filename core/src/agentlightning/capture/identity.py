"""Find the caller: the tags of the code that runs right now, the span it works in, and whether it is trained.

The agent's framework names the caller, by OpenTelemetry's current span (``gen_ai.agent.name``) or through an
adapter that sets tags around the code (:func:`agent_tags`, or an :class:`.AgentSpan`). The name of the
decorated agent outranks these (:func:`apply_scope`), and ``tagged()`` outranks that name. Invariant: of two
agents that frameworks name, the nearer one is the caller; the outer one's tags, besides its name and role,
hold for the inner one too.

``@agl.agent`` opens a *scope* around the entry methods of decorated classes. It names the calls inside, and
selects which of them are trained: a call is trained only if the innermost scope with a ``select`` of its own
selects it, and the run's ``select`` too. All calls are recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import baggage, context as otel, trace

from agentlightning import semconv
from agentlightning.capture.context import (
    SCOPE,
    AgentScope,
    ContextEntry,
    attached,
    baggage_tags,
    current_attempt,
)
from agentlightning.capture.delivery import COUNTS, attempt_trace_id
from agentlightning.semconv import BAGGAGE_PREFIX
from agentlightning.types import Tags, merge_tags
from agentlightning.types.select import BadSelect, Predicate, with_role

_LOG = logging.getLogger(__name__)


class RemoteParentSpan(trace.NonRecordingSpan):
    """A span of ours as the parent of the spans inside. It has the agent's name and that of a tool, like a
    live span.
    """

    def __init__(self, trace_id: int, span_id: int, agent: str | None, tool: str | None = None) -> None:
        super().__init__(trace.SpanContext(trace_id, span_id, False, trace.TraceFlags(1)))
        self.attributes = {semconv.AGENT_NAME: agent} if agent else {}
        if tool is not None:
            self.attributes |= {semconv.OPERATION_NAME: "execute_tool", semconv.TOOL_NAME: tool}


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The caller that a framework's adapter names."""

    tags: Tags
    otel_span: int
    """Id of OpenTelemetry's current span when this caller was named. A span that became current later is
    nearer."""
    parent: trace.Span | None = None
    """The span the code works in, where the framework's spans are never OpenTelemetry's current one."""
    outer: Caller | None = None
    """The caller in OpenTelemetry's context around it."""

    def is_within(self, other: Caller | None) -> bool:
        """Return whether it was named inside ``other``, so that it is nearer to the code."""
        caller: Caller | None = self
        while caller is not None and caller is not other:
            caller = caller.outer
        return caller is other


CALLER: Final = ContextEntry[Caller]("agl-caller")
CALLER_SOURCES: Final[list[Callable[[], Caller | None]]] = []
"""Functions of adapters that find the caller from what the framework itself carries; ``None`` outside the
framework. They serve frameworks that call back from other tasks than the work's, where nothing can be set
around the work.
"""


def span_number(span: trace.Span) -> int:
    """Return a span's id; 0 for an invalid span."""
    return span.get_span_context().span_id


def span_agent(span: trace.Span) -> str | None:
    """Return ``gen_ai.agent.name`` of a live span."""
    attributes = getattr(span, "attributes", None)
    name = attributes.get(semconv.AGENT_NAME) if attributes else None
    return str(name) if name else None


def current_caller(context: otel.Context | None = None) -> Caller | None:
    """Return the nearest caller that an adapter names, in ``context`` (default: the current one)."""
    held = CALLER.get(context)
    for source in reversed(CALLER_SOURCES):
        try:
            found = source()
        except Exception:
            COUNTS.add("identity-error")
            _LOG.warning("an adapter could not say who is calling", exc_info=True)
            continue
        if found is not None and found.is_within(held):
            return found
    return held


def current_span() -> trace.Span:
    """Return the parent of spans made now; an invalid span if there is none."""
    caller = current_caller()
    return caller.parent if caller and caller.parent is not None else trace.get_current_span()


def parent_ids(attempt_id: str) -> tuple[str, str | None]:
    """Return trace id and parent id, in hex, for a span of this attempt that is made now."""
    parent = current_span().get_span_context()
    if not parent.is_valid:
        return attempt_trace_id(attempt_id), None
    return f"{parent.trace_id:032x}", f"{parent.span_id:016x}"


def framework_tags(context: otel.Context | None = None) -> Tags:
    """Return the tags of the caller that frameworks name, without ``@agl.agent`` and ``tagged``."""
    return tags_of(current_caller(context), trace.get_current_span(context))


def tags_of(caller: Caller | None, span: trace.Span) -> Tags:
    """Return the tags of ``caller`` where OpenTelemetry's current span is ``span``."""
    agent = span_agent(span)
    if caller is None:
        return {"agent": agent} if agent else {}
    if agent in (None, caller.tags.get("agent")) or span_number(span) == caller.otel_span:
        return dict(caller.tags)
    return {**{tag: value for tag, value in caller.tags.items() if tag != "role"}, "agent": str(agent)}


def inherited_tags(tags: Tags) -> Tags:
    """Return ``tags`` with those of the outer caller, except another agent's role, and except a name where
    ``tags`` have a role alone.
    """
    around = framework_tags()
    if "agent" in tags and tags["agent"] != around.get("agent", tags["agent"]):
        around.pop("role", None)
    elif "role" in tags and "agent" not in tags:
        around.pop("agent", None)
    return {**around, **tags}


def caller_context(tags: Tags, span: trace.Span | None = None) -> otel.Context:
    """Return the current context with this caller, and with ``span`` as OpenTelemetry's current one.
    ``tags``: all tags of the caller, see :func:`inherited_tags`.
    """
    context = None if span is None else trace.set_span_in_context(span)
    current = trace.get_current_span() if span is None else span
    return CALLER.set(Caller(tags, span_number(current), outer=CALLER.get()), context)


def agent_tags(**tags: str) -> AbstractContextManager[None]:
    """Name the caller within the block: ``agent``, ``role``, ``node`` and whatever else the framework knows.
    Adapters use it around the code that works, never across a ``yield``.
    """
    return attached(caller_context(inherited_tags(tags)))


def thread_context() -> otel.Context:
    """Return the current context with the caller that :data:`CALLER_SOURCES` find: for code in other threads,
    to which frameworks carry nothing.
    """
    span = current_span()
    context = trace.set_span_in_context(span)
    if current_caller() is None:
        return context
    return CALLER.set(Caller(framework_tags(), span_number(span)), context)


def own_names(owner: Any) -> frozenset[str]:
    """Return the names that a framework may give an object: its ``name``, ``role`` (CrewAI's) or ``id``, and
    the name of its class, which adapters report for agents without a name.
    """
    found = {type(owner).__name__}
    for attribute in ("name", "role", "id"):
        try:
            value = getattr(owner, attribute, None)
        except Exception:  # a property that fails
            continue
        if isinstance(value, str):
            found.add(value.strip())
    return frozenset(found)


def apply_scope(scope: AgentScope, tags: Tags) -> Tags:
    """Return a framework's ``tags`` with the decorated agent's name in place of the object's own name, of an
    outer agent's name, and of none. Another agent, named inside the scope, is nearer and keeps its name.
    """
    agent = tags.get("agent")
    if agent is None or agent in own_names(scope.owner):
        return {**tags, "agent": scope.agent}
    if agent != scope.caller_agent:
        return tags
    return {**{tag: value for tag, value in tags.items() if tag != "role"}, "agent": scope.agent}


def caller_tags() -> Tags:
    """Return the tags of the caller. ``role`` defaults to the agent's name."""
    tags, scope = framework_tags(), SCOPE.get()
    tags = merge_tags(apply_scope(scope, tags) if scope is not None else tags, baggage_tags())
    if "agent" in tags:
        tags.setdefault("role", tags["agent"])
    return tags


def open_scope(agent: str, owner: Any, selects: Predicate | None = None) -> AgentScope:
    """Return a new scope inside the present one. Entry methods of one object that call each other are one
    agent, with one list of calls.
    """
    scope = AgentScope(agent, owner, selects, outer=SCOPE.get())
    if current_attempt() is not None:
        scope.caller_agent = framework_tags().get("agent")
    outer = scope.outer
    while outer is not None:
        if outer.owner is owner and not outer.suspended:
            scope.outermost, scope.call_span_ids = False, outer.call_span_ids
            break
        outer = outer.outer
    return scope


def inside_scope(scope: AgentScope) -> AbstractContextManager[None]:
    """Enter the scope within the block. It is nearer than an agent that ``tagged`` named outside."""
    return attached(SCOPE.set(scope, baggage.remove_baggage(f"{BAGGAGE_PREFIX}agent")))


def selects_call(tags: Tags, span_id: str) -> bool:
    """Return whether the scopes around a model call with these tags train it, and note the call's span in its
    agent's scope."""
    scope = SCOPE.get()
    if scope is None:
        return True
    if tags.get("agent") == scope.agent:
        scope.call_span_ids.append(span_id)
    while scope is not None and scope.selects is None:
        scope = scope.outer
    if scope is None or scope.selects is None:
        return True
    try:
        return scope.selects(with_role(tags))
    except BadSelect as error:
        if (attempt := current_attempt()) is not None:
            attempt.errors.append(error)
        raise
