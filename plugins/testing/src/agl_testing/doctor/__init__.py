"""``agl doctor``: looks a run over before it costs anything. :func:`examine` runs its checks from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names
from agl_testing.doctor.report import Check as Check, Report as Report

if TYPE_CHECKING:
    from agentlightning.train.configured import ConfiguredRun as ConfiguredRun
    from agl_testing.doctor.examination import examine as examine
    from agl_testing.doctor.findings import ProbeSize as ProbeSize

__getattr__ = lazy_names(
    __name__, {"ConfiguredRun": "findings", "ProbeSize": "findings", "examine": "examination"}
)
