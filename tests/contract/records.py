"""The suite's ``records``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.records import (
    RecordsContract as RecordsContract,
)
