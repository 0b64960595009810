"""Capture: turns what an agent does into spans of its attempt, and knows no store.

``install()`` and ``uninstall()`` switch it on and off for the process. ``context`` and ``identity`` know
which attempt, and which agent, the running code works for; ``sdk`` records model calls with their token ids;
``emit`` records rewards and the like; ``spans`` those of agents and tools; ``instrument`` has what adapters
are made of. Names load lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentlightning.capture.install import install as install, installed as installed, uninstall as uninstall

if TYPE_CHECKING:
    from agentlightning.capture.counts import COUNTS as COUNTS
    from agentlightning.capture.delivery import attempt_ended as attempt_ended, end_attempt as end_attempt
    from agentlightning.capture.identity import caller_tags as caller_tags

_HOMES = {
    "COUNTS": "counts",
    "attempt_ended": "delivery",
    "end_attempt": "delivery",
    "caller_tags": "identity",
}
__all__ = [*sorted(_HOMES), "install", "installed", "uninstall"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
