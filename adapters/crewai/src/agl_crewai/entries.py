"""The methods of CrewAI's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """The methods that run an ``Agent`` of CrewAI's; ``()`` for other classes."""
    if "crewai" not in sys.modules:
        return ()
    from crewai import Agent

    return ("execute_task", "aexecute_task", "kickoff", "kickoff_async") if issubclass(cls, Agent) else ()
