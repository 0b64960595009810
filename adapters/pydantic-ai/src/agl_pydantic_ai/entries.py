"""The methods of Pydantic AI's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``run`` of an agent, which the other ways of running call; ``()`` for other classes.

    ``iter`` and ``run_stream`` return context managers: they return before the turn begins.
    """
    if "pydantic_ai" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from pydantic_ai.agent import AbstractAgent

    return ("run",) if issubclass(cls, AbstractAgent) else ()
