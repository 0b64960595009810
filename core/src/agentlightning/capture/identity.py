"""Who is calling: the tags of the code that runs right now.

Adapters append a function to :data:`IDENTITY`; frameworks with their own OpenTelemetry spans need none,
because the current span names the agent. Weakest first: current span, adapters in order of registration,
the scope of a marked class (see :func:`apply_scope`), ``tagged()``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AgentScope, _tags, current_scope
from agentlightning.capture.counts import COUNTS
from agentlightning.types import Tags, merge_tags

_LOG = logging.getLogger(__name__)

Identity = Callable[[], Mapping[str, str]]
IDENTITY: list[Identity] = []
"""Adapters' functions; each returns the tags it knows, ``{}`` where its framework is not running."""


class RemoteParentSpan(trace.NonRecordingSpan):
    """Makes a span of ours the parent of what happens inside; its agent's name reads as on a live one."""

    def __init__(self, trace_id: int, span_id: int, agent: str | None) -> None:
        super().__init__(trace.SpanContext(trace_id, span_id, False, trace.TraceFlags(1)))
        self.attributes = {semconv.AGENT_NAME: agent} if agent else {}


Parent = Callable[[], "trace.Span | None"]
PARENTS: list[Parent] = []
"""Adapters' functions for frameworks whose spans are never OpenTelemetry's current one: the span that the
running code works in, or ``None`` where OpenTelemetry's own is nearer."""


def current_span() -> trace.Span:
    """The span below which what happens right now hangs; an invalid one where there is none."""
    for parent in reversed(PARENTS):
        try:
            if (span := parent()) is not None:
                return span
        except Exception:
            COUNTS.add("identity-error")
            _LOG.warning("an adapter could not say in which span the code works", exc_info=True)
    return trace.get_current_span()


def span_agent(span: trace.Span | None = None) -> str | None:
    """``gen_ai.agent.name`` of a live span (default: the current one)."""
    attributes = getattr(span or current_span(), "attributes", None)
    name = attributes.get(semconv.AGENT_NAME) if attributes else None
    return str(name) if name else None


def framework_tags() -> Tags:
    """Tags of the caller in the words of the agent's framework alone."""
    found: list[Mapping[str, str]] = [{"agent": name} if (name := span_agent()) else {}]
    for identity in tuple(IDENTITY):
        try:
            found.append(identity())
        except Exception:
            COUNTS.add("identity-error")
            _LOG.warning("an adapter could not say who is calling", exc_info=True)
    return merge_tags(*found)


def own_names(owner: Any) -> frozenset[str]:
    """What an object is called by its own framework: agents keep it as ``name``, CrewAI's as ``role``; where
    one has no name, an adapter says its class's.
    """
    found = {type(owner).__name__}
    for attribute in ("name", "role", "id"):
        try:
            value = getattr(owner, attribute, None)
        except Exception:  # a property that fails: nothing was ever named after it
            continue
        if isinstance(value, str):
            found.add(value.strip())
    return frozenset(found)


def apply_scope(scope: AgentScope, tags: Tags) -> Tags:
    """A framework's ``tags``, with the scope's name in the place of the object's own name, of an agent that
    was named farther away, and of none. Another agent, named from within, is nearer and keeps its name.
    """
    said = tags.get("agent")
    if said is None or said in own_names(scope.owner):
        return {**tags, "agent": scope.agent}
    if said != scope.caller_agent:
        return tags
    return {**{tag: value for tag, value in tags.items() if tag != "role"}, "agent": scope.agent}


def caller_tags() -> Tags:
    """Tags of the caller. ``role`` is the agent's name unless somebody said otherwise."""
    tags, scope = framework_tags(), current_scope()
    tags = merge_tags(apply_scope(scope, tags) if scope is not None else tags, _tags.get())
    if "agent" in tags:
        tags.setdefault("role", tags["agent"])
    return tags
