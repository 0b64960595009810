"""The methods of Pydantic AI's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """``run`` of an agent, which ``@agl.agent`` marks, and which ``run_sync`` and ``run_stream_events`` pass.

    ``iter`` and ``run_stream`` give context managers: they return before the turn begins. ``()`` for classes
    that are no agents.
    """
    if "pydantic_ai" not in sys.modules:  # then cls is none of its classes: do not import it for this
        return ()
    from pydantic_ai.agent import AbstractAgent

    return ("run",) if issubclass(cls, AbstractAgent) else ()
