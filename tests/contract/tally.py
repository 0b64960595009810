"""The suite's ``tally``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.tally import (
    TALLY as TALLY,
    Served as Served,
    Tally as Tally,
)
