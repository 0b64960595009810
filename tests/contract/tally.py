"""The suite's ``tally``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.tally import (
    TALLY as TALLY,
    CountedServer as CountedServer,
    Tally as Tally,
)
