"""pass@k by hand, and against all draws."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from agentlightning.algorithms.intervals import pass_at, pass_metrics


@pytest.mark.parametrize(
    ("n", "right", "k", "wanted"),
    [(5, 2, 1, 0.4), (5, 2, 2, 0.7), (5, 2, 4, 1.0), (5, 0, 3, 0.0), (3, 3, 1, 1.0), (4, 1, 2, 0.5)],
)
def test_by_hand(n: int, right: int, k: int, wanted: float) -> None:
    assert pass_at(n, right, k) == pytest.approx(wanted)


@given(st.integers(1, 8), st.data())
def test_it_is_the_share_of_draws_that_hold_a_right_one(n: int, data: st.DataObject) -> None:
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * right + [False] * (n - right), k))
    assert pass_at(n, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_more_draws_than_rollouts_have_no_estimate() -> None:
    with pytest.raises(ValueError, match="k must be between 1 and 4"):
        pass_at(4, 1, 5)


def test_tasks_count_alike_each_for_the_draws_that_it_has_rollouts_for() -> None:
    found = pass_metrics({"a": [1.0, 0.0, 0.0], "b": [1.0, 0.0]})  # one rollout of b was left out
    assert found == pytest.approx({"pass@1": (1 / 3 + 1 / 2) / 2, "pass@2": (2 / 3 + 1) / 2, "pass@3": 1.0})
    assert pass_metrics({}) == {}
