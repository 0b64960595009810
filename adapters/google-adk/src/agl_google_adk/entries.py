"""The methods of Google ADK's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``run_async`` of an agent, which runners, workflows and other agents call; ``()`` for other
    classes.
    """
    if "google.adk" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from google.adk.agents import BaseAgent

    return ("run_async",) if issubclass(cls, BaseAgent) else ()
