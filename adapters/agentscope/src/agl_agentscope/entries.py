"""The methods of AgentScope's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``reply`` in AgentScope 1; in 2 ``_reply``, which ``reply`` and ``reply_stream`` call."""
    module = sys.modules.get("agentscope.agent")
    if module is None:
        return ()
    if (base := getattr(module, "AgentBase", None)) is not None:
        return ("reply",) if issubclass(cls, base) else ()
    return ("_reply",) if issubclass(cls, module.Agent) else ()
