"""Who is calling: the tags of the code that runs right now.

Adapters append a function to :data:`IDENTITY`; frameworks with their own OpenTelemetry spans need none,
because the current span names the agent. Weakest first: current span, adapters in order of registration,
``tagged()``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import current_tags
from agentlightning.capture.counts import COUNTS
from agentlightning.types import Tags, merge_tags

_LOG = logging.getLogger(__name__)

Identity = Callable[[], Mapping[str, str]]
IDENTITY: list[Identity] = []
"""Adapters' functions; each returns the tags it knows, ``{}`` where its framework is not running."""


def span_agent(span: trace.Span | None = None) -> str | None:
    """``gen_ai.agent.name`` of a live span (default: the current one)."""
    attributes = getattr(span or trace.get_current_span(), "attributes", None)
    name = attributes.get(semconv.AGENT_NAME) if attributes else None
    return str(name) if name else None


def who() -> Tags:
    """Tags of the caller. ``role`` is the agent's name unless somebody said otherwise."""
    found: list[Mapping[str, str]] = [{"agent": name} if (name := span_agent()) else {}]
    for identity in tuple(IDENTITY):
        try:
            found.append(identity())
        except Exception:
            COUNTS.add("identity-error")
            _LOG.warning("an adapter could not say who is calling", exc_info=True)
    tags = merge_tags(*found, current_tags())
    if "agent" in tags:
        tags.setdefault("role", tags["agent"])
    return tags
