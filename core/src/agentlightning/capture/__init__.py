"""Capture: turn what an agent does into spans of its attempt. Capture imports no store.

``install()`` and ``uninstall()`` (:mod:`.installation`) switch capture on and off for the process.
``context`` and ``identity`` hold the attempt and the agent that the running code works for. ``sdk`` records
model calls with their token ids, ``emit`` rewards and other records of the agent, ``spans`` and ``processor``
the work of agents and tools; ``records`` checks all of them, and ``delivery`` hands them to the attempt.
``adapter`` is the base of adapters. Names load lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names

if TYPE_CHECKING:
    from agentlightning.capture.delivery import COUNTS as COUNTS, end_attempt as end_attempt
    from agentlightning.capture.identity import caller_tags as caller_tags
    from agentlightning.capture.installation import (
        install as install,
        installed as installed,
        uninstall as uninstall,
    )

_HOMES = {
    "COUNTS": "delivery",
    "caller_tags": "identity",
    "end_attempt": "delivery",
    "install": "installation",
    "installed": "installation",
    "uninstall": "installation",
}
__all__ = sorted(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
