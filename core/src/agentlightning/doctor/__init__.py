from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names
from agentlightning.doctor.report import Check as Check, Report as Report

if TYPE_CHECKING:
    from agentlightning.doctor.examination import examine as examine
    from agentlightning.doctor.findings import ProbeSize as ProbeSize
    from agentlightning.train.configured import ConfiguredRun as ConfiguredRun

__getattr__ = lazy_names(
    __name__, {"ConfiguredRun": "findings", "ProbeSize": "findings", "examine": "examination"}
)
