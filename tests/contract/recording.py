"""The suite's ``recording``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.recording import (
    Recording as Recording,
    assert_each_exact as assert_each_exact,
    assert_exact as assert_exact,
    assert_same_tokens as assert_same_tokens,
)
