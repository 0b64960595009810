"""The suite's ``faults``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.faults import (
    FaultsContract as FaultsContract,
)
