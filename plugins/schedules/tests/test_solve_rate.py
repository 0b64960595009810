"""The curriculum by solve rates: choices worked out by hand, exploration, counts, and its state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from agl_schedules.solve_rate import SolveRate, SolveRateOptions


def made(count: int, seed: int = 1, **options: float) -> SolveRate:
    return SolveRate(count, seed, SolveRateOptions.model_validate(options))


def test_a_solve_rate_is_over_the_rewarded_rollouts_of_the_last_groups() -> None:
    one = made(4, window=2)
    one.learn(0, [(0, [1.0, 1.0, 0.0, 0.0]), (1, [0.0, None, 0.0, None])])
    assert one.asked[0].rate == 2 / 4 and one.asked[1].rate == 0 / 2
    one.learn(1, [(0, [1.0, 0.0])])
    assert one.asked[0].rate == pytest.approx(3 / 6)  # groups of unlike size count by their rollouts
    one.learn(2, [(0, [1.0, 1.0, 1.0, None])])
    assert one.asked[0].rate == pytest.approx(4 / 5)  # the first group has left the window
    one.learn(3, [(2, [None, None])])
    assert one.asked[2].rate is None and one.asked[2].step == 3


def test_every_task_is_counted_once() -> None:
    one = made(7, low=0.25, high=0.75, right=0.5)
    one.learn(0, [(0, [1, 0]), (1, [1, 1]), (2, [0, 0.4]), (3, [None, None]), (4, [0.5, 0, 0, 0])])
    assert one.metrics() == {
        "curriculum/inside": 2, "curriculum/too_easy": 1, "curriculum/too_hard": 1,
        "curriculum/unrewarded": 1, "curriculum/unseen": 2,
    }  # fmt: skip


def test_inside_first_then_unseen_then_what_was_not_asked_for_longest() -> None:
    one = made(6, low=0.25, high=0.75, explore=0.5)
    one.learn(0, [(0, [1, 0]), (1, [1, 1])])
    one.learn(1, [(2, [0, 0])])
    one.learn(2, [(3, [1, 0])])
    # half of four: both tasks inside; the other two have never been asked
    assert sorted(one.choose(3, 4)[:2]) == [0, 3] and sorted(one.choose(3, 4)[2:]) == [4, 5]
    one.learn(3, [(4, [1, 0]), (5, [None])])
    # nothing is unseen: outside are 1 (asked in step 0), 2 (in 1), 5 (in 3)
    chosen = one.choose(4, 4)
    assert set(chosen[:2]) < {0, 3, 4} and chosen[2:] == [1, 2]
    # with too few inside, exploration fills the step; what the step has already comes last
    assert one.choose(4, 3, [0, 3, 4]) == [1, 2, 5]
    assert set(one.choose(4, 6)) == set(range(6))


def test_without_exploration_only_what_is_inside_is_asked_while_there_is_enough() -> None:
    one = made(10, explore=0.0)
    one.learn(0, [(position, [1, 0]) for position in (2, 5, 7)])
    assert {position for step in range(1, 20) for position in one.choose(step, 3)} == {2, 5, 7}
    assert {2, 5, 7} < set(one.choose(20, 4))


def test_a_share_of_less_than_a_task_is_explored_on_average() -> None:
    one = made(1000, explore=0.25)
    one.learn(0, [(position, [1, 0]) for position in range(100)])
    explored = sum(position >= 100 for step in range(1, 801) for position in one.choose(step, 1))
    assert 160 < explored < 240  # 200 expected, with a deviation of 12


@given(
    count=st.integers(1, 30),
    size=st.integers(1, 12),
    seed=st.integers(0, 3),
    explore=st.floats(0, 1),
    solved=st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=2, max_size=2), max_size=40),
)
def test_no_task_twice_before_all_have_been_and_the_same_for_the_same_results(
    count: int, size: int, seed: int, explore: float, solved: list[list[float | None]]
) -> None:
    one = made(count, seed, explore=explore)
    for step, rewards in enumerate(solved):
        one.learn(step, [(step % count, rewards)])
    chosen = one.choose(len(solved), size)
    assert len(chosen) == size and set(chosen) <= set(range(count))
    assert len(set(chosen)) == min(size, count)
    more = one.choose(len(solved), size, chosen)
    assert len(set(more) - set(chosen)) == min(size, count - len(set(chosen)))
    again = made(count, seed, explore=explore)
    again.restore(json.loads(json.dumps(one.state())))
    assert again.choose(len(solved), size) == chosen and again.metrics() == one.metrics()
    assert sum(one.metrics().values()) == count


def test_each_seed_and_each_step_draws_its_own() -> None:
    drawn = {tuple(made(1000, seed).choose(step, 8)) for seed in (1, 2) for step in (0, 1)}
    assert len(drawn) == 4


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"low": 0.8, "high": 0.2}, "low = 0.8 is above high = 0.2"),
        ({"window": 0}, "window"),
        ({"lo": 1}, "lo"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        made(3, **options)
