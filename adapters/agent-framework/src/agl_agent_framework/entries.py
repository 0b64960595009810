"""The methods of Agent Framework's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``run`` for agents: streams, workflows and agents as tools all call it."""
    if "agent_framework" not in sys.modules:
        return ()
    from agent_framework import BaseAgent

    return ("run",) if issubclass(cls, BaseAgent) else ()
