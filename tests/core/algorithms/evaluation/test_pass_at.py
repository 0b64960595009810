"""pass@k by hand, and against all draws."""

from __future__ import annotations

from itertools import combinations

import pytest
from core.credit.builders import make_record
from hypothesis import given, strategies as st

from agentlightning.algorithms.evaluation.pass_at import outcomes_by_task, pass_at, pass_metrics
from agentlightning.types import RolloutStatus


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


def test_tasks_count_alike_and_a_failed_rollout_is_wrong() -> None:
    records = [make_record(f"a{i}", reward=float(i == 0), group="a") for i in range(3)]
    records += [make_record(f"b{i}", reward=1.0, group="b") for i in range(2)]
    records.append(make_record("b2", reward=1.0, group="b", status=RolloutStatus.FAILED))
    rewards = outcomes_by_task(records)
    assert rewards == {"a": [1.0, 0.0, 0.0], "b": [1.0, 1.0, 0.0]}
    found = pass_metrics(rewards)
    assert found == pytest.approx({"pass@1": 0.5, "pass@2": (2 / 3 + 1) / 2, "pass@3": 1.0})
