"""Who is calling, in AgentScope's own terms: the agent that replies, whichever pipeline or hub called it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agentlightning.capture.spans.agent_span import identity as identity


def entry_methods(cls: type) -> Sequence[str]:
    """``reply`` in AgentScope 1; in 2 ``_reply``, which ``reply`` and ``reply_stream`` pass through."""
    module = sys.modules.get("agentscope.agent")
    if module is None:
        return ()
    if (base := getattr(module, "AgentBase", None)) is not None:
        return ("reply",) if issubclass(cls, base) else ()
    return ("_reply",) if issubclass(cls, module.Agent) else ()
