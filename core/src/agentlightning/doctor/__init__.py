"""The doctor: looks a run over before it costs anything, and says what would make it pointless.

Each check is one small function that returns a :class:`Check`; :func:`examine` runs them in order, each on
what the ones before it found, and skips those whose ground is gone. The probe is real: the user's agent
through gateway, engine and store, in a temporary folder that is removed; the policy is only read.
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
