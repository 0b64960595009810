"""The suite's ``calls``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.calls import (
    Answer as Answer,
    CallsContract as CallsContract,
)
