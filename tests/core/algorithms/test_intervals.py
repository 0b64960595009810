"""95 % intervals: hand-worked values, coverage by simulation, and what they say of themselves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from agentlightning.algorithms.intervals import mean_interval, t_quantile

TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 8: 2.3060, 30: 2.0423, 1000: 1.9623}
"""97.5 % quantiles of Student's t, from tables."""
TRIALS = 1000


@pytest.mark.parametrize(("degrees", "quantile"), TABLE.items())
def test_the_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, rel=1e-4)


def test_wilson_for_zero_one_rewards() -> None:
    # k = 8 of n = 10, z = 1.96: centre (0.8 + 0.19208) / 1.38416, half 1.96 · sqrt(0.016 + 0.009604) /
    # 1.38416
    found = mean_interval([1.0] * 8 + [0.0] * 2)
    assert found.ends == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert found.kind == "Wilson"


def test_all_right_is_not_certain() -> None:
    low, high = mean_interval([1.0] * 20).ends or (0.0, 0.0)
    assert high == 1.0 and low == pytest.approx(0.8389, abs=1e-4)
    of_tasks = mean_interval([1.0] * 40, [n // 2 for n in range(40)])
    assert of_tasks.ends == (low, high) and of_tasks.kind == "Wilson over 20 tasks"


def test_students_t_for_graded_rewards() -> None:
    found = mean_interval([0.0, 0.5, 1.0, 0.5])  # sd 0.408248, half 3.1824 · 0.408248 / 2
    assert found.ends == (pytest.approx(-0.1496, abs=1e-3), pytest.approx(1.1496, abs=1e-3))
    assert found.kind == "Student's t"


def test_equal_rewards_give_no_interval_and_say_so() -> None:
    assert mean_interval([0.5] * 8) == (None, "all 8 tasks have the mean 0.5")
    assert mean_interval([0.0, 1.0] * 4, [n // 2 for n in range(8)]) == (
        None,
        "all 4 tasks have the mean 0.5",
    )
    assert mean_interval([0.0] * 6, shares=False) == (None, "all 6 tasks have the mean 0")


def test_nothing_and_one() -> None:
    assert mean_interval([]).ends is None
    assert mean_interval([0.3]) == (None, "one task alone")  # it says nothing about spread
    assert mean_interval([0.3, 0.5], ["db", "db"], "db_id") == (None, "one db_id alone")


def test_several_rollouts_of_a_task_are_one_unit() -> None:
    """With as many rollouts in each, the interval is Student's t over the tasks' means, cut at 0 and 1."""
    rewards, units = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2]
    means = mean_interval([1.0, 0.5, 0.0], shares=False).ends
    assert means is not None and means[0] < 0 < 1 < means[1]
    found = mean_interval(rewards, units)
    assert found.ends == (0.0, 1.0) and found.kind == "Student's t over 3 tasks"
    graded = [3 * reward for reward in rewards]
    assert mean_interval(graded, units).ends == pytest.approx([3 * end for end in means])


def test_differences_of_0_and_1_are_no_shares() -> None:
    low, high = mean_interval([0.0, 1.0, 0.0, 1.0], shares=False).ends or (0.0, 0.0)
    assert high - 0.5 == pytest.approx(0.5 - low) == pytest.approx(3.1824 * math.sqrt(1 / 3) / 2, abs=0.002)


def test_clusters_of_one_are_independent() -> None:
    rewards = [1.0] * 8 + [0.0] * 2
    assert mean_interval(rewards, range(10), "story") == mean_interval(rewards)


def test_few_wrong_answers_in_few_clusters_are_no_reason_to_know_nothing() -> None:
    """58 of 60 right in 20 databases, one wrong in each of two: with s_g - n_g·m of -0.9 and 0.1, e is
    0.02294, and 0.0322 / e² are 61.2 rewards, of which there are 60: 60 · (1.96 / 2.0930)² are 52.6.
    """
    rewards = [0.0, 1.0, 1.0] * 2 + [1.0] * 54
    found = mean_interval(rewards, [place // 3 for place in range(60)], "db_id")
    assert found.kind == "Wilson over 20 db_id, 52.6 effective"
    assert found.ends == (pytest.approx(0.8783, abs=1e-3), pytest.approx(0.9915, abs=1e-3))
    assert _coverage(lambda draw: clustered(12, draw, 12.0, 0.6), "db_id", 120, 12.0 / 12.6) >= 0.9


def test_two_clusters_are_too_few() -> None:
    assert mean_interval([0.1, 0.5, 0.9], ["a", "a", "b"], "game") == (None, "2 game are too few")


def independent(n: int, draw: random.Random) -> tuple[list[float], None]:
    return [draw.gauss(0.5, 0.2) for _ in range(n)], None


def clustered(
    n: int, draw: random.Random, right: float = 1.5, wrong: float = 1.5
) -> tuple[list[float], list[int]]:
    """0/1 rewards of ``n`` databases of 1 to 8 questions; each database has a difficulty of its own."""
    rewards, units = [], []
    for database in range(n):
        solved = draw.betavariate(right, wrong)
        questions = draw.randint(1, 8)
        rewards += [float(draw.random() < solved) for _ in range(questions)]
        units += [database] * questions
    return rewards, units


@pytest.mark.parametrize("n", [2, 5, 8, 20])
def test_students_t_covers_the_mean_as_often_as_it_says(n: int) -> None:
    """The normal interval, without Student's t, covers 71 %, 88 %, 91 % and 94 %."""
    assert 0.93 <= _coverage(lambda draw: independent(n, draw), None, TRIALS) <= 0.97


@pytest.mark.parametrize("n", [6, 12])
def test_the_bootstrap_over_clusters_covers_the_mean_and_independence_does_not(n: int) -> None:
    assert 0.92 <= _coverage(lambda draw: clustered(n, draw), "db_id", 120) <= 1.0
    assert _coverage(lambda draw: (clustered(n, draw)[0], None), None, TRIALS) < 0.87


def _coverage(
    sample: Callable[[random.Random], tuple[list[float], list[int] | None]],
    cluster: str | None,
    trials: int,
    mean: float = 0.5,
) -> float:
    """Return how often the interval of a sample holds the true mean."""
    draw, covered = random.Random(5), 0
    for _ in range(trials):
        rewards, units = sample(draw)
        ends = mean_interval(rewards, units, cluster).ends or (0.0, 1.0)
        covered += ends[0] <= mean <= ends[1]
    return covered / trials
