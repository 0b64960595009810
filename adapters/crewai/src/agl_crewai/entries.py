"""The methods of CrewAI's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return the methods that run CrewAI's ``Agent``; ``()`` for other classes."""
    if "crewai" not in sys.modules:
        return ()
    from crewai import Agent

    return ("execute_task", "aexecute_task", "kickoff", "kickoff_async") if issubclass(cls, Agent) else ()
