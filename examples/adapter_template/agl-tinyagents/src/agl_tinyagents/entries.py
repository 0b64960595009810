"""The methods of TinyAgents' classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return the methods that run an ``Agent``; ``()`` for other classes."""
    if "tinyagents" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from tinyagents import Agent

    return ("run", "stream") if issubclass(cls, Agent) else ()
