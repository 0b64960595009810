"""The suite's ``faults``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.faults import (
    FaultsContract as FaultsContract,
)
