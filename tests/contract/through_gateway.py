"""The suite's ``through_gateway``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.through_gateway import (
    Leased as Leased,
    ModelServer as ModelServer,
    assert_one_row as assert_one_row,
    leased_attempt as leased_attempt,
)
