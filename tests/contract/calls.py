"""The suite's ``calls``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.calls import (
    Answer as Answer,
    CallsContract as CallsContract,
)
