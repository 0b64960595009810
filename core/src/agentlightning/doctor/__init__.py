"""Check a run before it costs anything, and report problems that would waste it.

Each check is a small function that returns a :class:`Check`. :func:`examine` runs the checks in order; a
check reads the findings of earlier ones and is skipped if one that it needs failed. The probe runs the user's
agent through a real gateway, engine and store in a temporary folder, and only reads the policy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentlightning.doctor.report import Check, Report

if TYPE_CHECKING:
    from agentlightning.doctor.examination import examine
    from agentlightning.doctor.findings import Findings, ProbeSize
    from agentlightning.train.configured import ConfiguredRun

_HOMES = {
    "examine": "doctor.examination",
    "ConfiguredRun": "train.configured",
    "Findings": "doctor.findings",
    "ProbeSize": "doctor.findings",
}
__all__ = ["ConfiguredRun", "Check", "Findings", "Report", "ProbeSize", "examine"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"agentlightning.{_HOMES[name]}"), name)
