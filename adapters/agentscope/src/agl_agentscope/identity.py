"""Who is calling, in AgentScope's own terms: the agent that replies, whichever pipeline or hub called it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar

from agentlightning.types import Tags

SPEAKER: ContextVar[str | None] = ContextVar("agl_agentscope_speaker", default=None)
"""The agent whose code runs here."""


def identity() -> Tags:
    """``agent``; empty outside a reply."""
    name = SPEAKER.get()
    return {} if name is None else {"agent": name}


def entry_methods(cls: type) -> Sequence[str]:
    """``reply`` in AgentScope 1; in 2 ``_reply``, which ``reply`` and ``reply_stream`` pass through."""
    module = sys.modules.get("agentscope.agent")
    if module is None:
        return ()
    if (base := getattr(module, "AgentBase", None)) is not None:
        return ("reply",) if issubclass(cls, base) else ()
    return ("_reply",) if issubclass(cls, module.Agent) else ()
