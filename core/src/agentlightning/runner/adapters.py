"""The framework adapters that capture in a process needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from agentlightning.plugins.manager import Plugins, pick


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names; a single one may be given bare."""
    return (names,) if isinstance(names, str) else tuple(names)


def instrumentors(plugins: Plugins, adapters: str | Sequence[str] = ()) -> list[Any]:
    """Of the adapters asked for by name, and of those whose framework this process has imported."""
    names = listed(adapters)
    for name in names:
        pick(plugins.adapters, "adapter", name)
    return [
        s.instrumentor() for s in plugins.adapters.values() if s.name in names or s.framework in sys.modules
    ]
