"""Who is calling, in the SDK's own terms: the agent whose span the code runs in.

Core reads the agent's name from the current OpenTelemetry span, which the bridge sets. Where a user's
provider samples spans away, or OpenTelemetry is switched off, the frame still knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context as otel, trace

from agentlightning.capture.identity import span_agent
from agentlightning.types import Tags


@dataclass(slots=True, eq=False)
class Frame:
    """One of the SDK's spans under way, and what was current before it."""

    agent: str | None
    span: trace.Span
    here: Token[Frame | None] = field(init=False)
    current: Token[otel.Context] = field(init=False)
    error: Any = None
    over: bool = False


HERE: ContextVar[Frame | None] = ContextVar("agl_openai_agents", default=None)


def running_agent() -> str | None:
    """The agent whose run the present code belongs to."""
    frame = HERE.get()
    return frame.agent if frame is not None and not frame.over else None


def identity() -> Tags:
    """``agent`` where no span names one; empty outside a run."""
    agent = running_agent()
    return {"agent": agent} if agent is not None and span_agent() is None else {}


def entry_methods(cls: type) -> Sequence[str]:
    """None of the SDK's own: an ``Agent`` has no method that runs it, and its ``name`` is the tag. A class of
    the user's around ``Runner`` is marked at its ``run`` and the like, as any class is."""
    return ()
