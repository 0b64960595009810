"""The suite's ``leaving``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.leaving import (
    LeavingContract as LeavingContract,
)
