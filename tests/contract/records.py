"""The suite's ``records``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.records import (
    RecordsContract as RecordsContract,
)
