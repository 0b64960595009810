"""The suite's ``leaving``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.leaving import (
    LeavingContract as LeavingContract,
)
