"""The methods of DSPy's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return the methods that run a ``Module``; ``()`` for other classes."""
    if "dspy" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from dspy import Module

    return ("__call__", "acall") if issubclass(cls, Module) else ()
