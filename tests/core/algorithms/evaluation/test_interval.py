"""95 % intervals: hand-worked values."""

from __future__ import annotations

import pytest

from agentlightning.algorithms.evaluation.evaluate import interval


def test_wilson_for_zero_one_rewards() -> None:
    # k = 8 of n = 10, z = 1.96: centre (0.8 + 0.19208) / 1.38416, half 1.96 · sqrt(0.016 + 0.009604) /
    # 1.38416
    low, high = interval([1.0] * 8 + [0.0] * 2)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))


def test_all_right_is_not_certain() -> None:
    low, high = interval([1.0] * 20)
    assert high == 1.0 and low == pytest.approx(0.8389, abs=1e-4)


def test_normal_for_graded_rewards() -> None:
    low, high = interval([0.0, 0.5, 1.0, 0.5])  # sd 0.408248, half 1.95996 · 0.408248 / 2
    assert (low, high) == (pytest.approx(0.5 - 0.400075, abs=1e-5), pytest.approx(0.5 + 0.400075, abs=1e-5))


def test_nothing_and_one() -> None:
    assert interval([]) is None
    assert interval([0.3]) is None  # one graded reward says nothing about spread
