"""The suite's ``crowds``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.crowds import (
    WORKER as WORKER,
    CrowdsContract as CrowdsContract,
    assert_apart as assert_apart,
    busy as busy,
)
