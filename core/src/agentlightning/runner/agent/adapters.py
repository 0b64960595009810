"""The framework adapters that a process activates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from agentlightning.plugins.manager import Plugins, pick


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple. A string is a single name."""
    return (names,) if isinstance(names, str) else tuple(names)


def instrumentors(plugins: Plugins, adapters: str | Sequence[str] = ()) -> list[Any]:
    """Return the instrumentors of the named adapters and of those whose framework is imported here. Raise
    ``PluginError`` for an unknown name.
    """
    names = listed(adapters)
    for name in names:
        pick(plugins.adapters, "adapter", name)
    return [
        s.instrumentor() for s in plugins.adapters.values() if s.name in names or s.framework in sys.modules
    ]
