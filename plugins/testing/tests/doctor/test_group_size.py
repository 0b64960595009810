"""How likely a group carries a signal: against closed forms, enumeration and simulation."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from agl_testing.doctor.group_size import TARGET, informative, suggest, zero_variance_share
from core.credit.builders import PATIENT
from hypothesis import given, strategies as st

BITS = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), min_size=1, max_size=6)
GRADES = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5]), min_size=2, max_size=6), min_size=1, max_size=4)


def draw(a: float, b: float, tasks: int, samples: int, rng: random.Random) -> list[list[float]]:
    chances = [rng.betavariate(a, b) for _ in range(tasks)]
    return [[float(rng.random() < p) for _ in range(samples)] for p in chances]


@pytest.mark.parametrize(("a", "b"), [(2, 2), (1, 1), (0.3, 0.3), (0.2, 1.5), (5, 1), (20, 20)])
@pytest.mark.parametrize("n", [4, 16])
def test_the_estimate_is_near_the_truth_on_average(a: float, b: float, n: int) -> None:
    """Populations of tasks of every shape, probed with 8 × 8 rollouts: the mean estimate is within 0.08."""
    rng = random.Random(1)
    chances = [rng.betavariate(a, b) for _ in range(20_000)]
    truth = statistics.fmean(1 - p**n - (1 - p) ** n for p in chances)
    estimates = [informative(draw(a, b, 8, 8, rng), n) for _ in range(25)]
    assert abs(statistics.fmean(estimates) - truth) < 0.08


def test_many_samples_of_equal_tasks_come_to_the_closed_form() -> None:
    groups = [[1.0, 0.0] * 100] * 20  # every task succeeds half of the time
    for n in (2, 4, 8):
        assert informative(groups, n) == pytest.approx(1 - 2 * 0.5**n, abs=0.02)


@PATIENT
@given(BITS)
def test_larger_groups_carry_more_and_a_probability_is_one(groups: list[list[float]]) -> None:
    shares = [informative(groups, n) for n in (1, 2, 4, 8, 32)]
    assert shares[0] == 0.0 and shares == sorted(shares) and shares[-1] <= 1.0
    flipped = [[1.0 - reward for reward in group] for group in groups]
    assert informative(flipped, 4) == pytest.approx(informative(groups, 4), abs=1e-9)


@PATIENT
@given(GRADES, st.integers(2, 4))
def test_graded_rewards_are_counted_over_all_subsets(groups: list[list[float]], n: int) -> None:
    graded = [[*group, 0.3] for group in groups]  # never all 0 and 1
    shares = []
    for group in graded:
        subsets = list(itertools.combinations(group, min(n, len(group))))
        shares.append(sum(len(set(subset)) > 1 for subset in subsets) / len(subsets))
    assert informative(graded, n) == pytest.approx(math.fsum(shares) / len(shares))


def test_the_smallest_size_that_reaches_the_target_is_suggested() -> None:
    even = [[1.0, 0.0] * 8] * 16
    found = suggest(even, 64)
    assert found.why == "enough" and found.informative >= TARGET > informative(even, found.size - 1)


def test_where_tasks_are_solved_or_out_of_reach_a_group_need_not_grow() -> None:
    unlike = [[0.0] * 8] * 4 + [[1.0] * 8] * 4 + [[0.0, 1.0] * 4] * 4
    found = suggest(unlike, 64)
    assert found.why == "knee" and found.size < 64
    assert informative(unlike, 2 * found.size) < 1.2 * found.informative


def test_rare_successes_need_the_largest_groups() -> None:
    rare = [[0.0] * 63 + [1.0]] * 16
    found = suggest(rare, 16)
    assert found == (16, informative(rare, 16), "most")


def test_groups_without_spread_are_counted() -> None:
    assert zero_variance_share([[0.0, 0.0], [0.0, 1.0], [1.0]]) == 0.5
    assert zero_variance_share([[1.0], []]) == 1.0
    assert informative([], 4) == informative([[]], 4) == 0.0
