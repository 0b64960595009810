"""The methods of smolagents' classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``run``, which calling a managed agent calls too; ``()`` for other classes."""
    if "smolagents" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from smolagents import MultiStepAgent

    return ("run",) if issubclass(cls, MultiStepAgent) else ()
