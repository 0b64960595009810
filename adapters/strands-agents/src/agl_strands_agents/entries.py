"""The methods of Strands' classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return the methods that run an ``Agent``; ``()`` for other classes."""
    if "strands" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from strands import Agent

    return ("__call__", "invoke_async", "stream_async") if issubclass(cls, Agent) else ()
