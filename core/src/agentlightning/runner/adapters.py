"""The framework adapters to activate in a process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from agentlightning.plugins.manager import Plugins, pick


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """A list of names; a single name may be given as a text."""
    return (names,) if isinstance(names, str) else tuple(names)


def instrumentors(plugins: Plugins, adapters: str | Sequence[str] = ()) -> list[Any]:
    """Instrumentors of the named adapters, and of those whose framework this process has imported."""
    names = listed(adapters)
    for name in names:
        pick(plugins.adapters, "adapter", name)
    return [
        s.instrumentor() for s in plugins.adapters.values() if s.name in names or s.framework in sys.modules
    ]
