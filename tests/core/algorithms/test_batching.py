"""Tasks to rollouts: everything is a function of seed and position."""

from __future__ import annotations

from itertools import islice

import pytest

from agentlightning.algorithms.batching import group_rollouts, stable_seed, task_batches, task_id


def test_batches_are_reproducible_and_leave_nothing_out() -> None:
    tasks = list(range(10))
    first = list(islice(task_batches(tasks, 4, seed=3), 5))
    assert first == list(islice(task_batches(tasks, 4, seed=3), 5))
    assert first != list(islice(task_batches(tasks, 4, seed=4), 5))
    assert sorted(task for batch in first for task in batch) == sorted(
        tasks * 2
    )  # two epochs, each task in each
    assert all(len(batch) == 4 for batch in first)


def test_batch_larger_than_the_dataset_repeats_tasks() -> None:
    assert sorted(next(task_batches([1, 2], 4, seed=0))) == [1, 1, 2, 2]


def test_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        next(task_batches([], 1, seed=0))


def test_task_ids() -> None:
    assert task_id({"id": 7}) == "7"
    assert task_id({"a": 1, "b": 2}) == task_id({"b": 2, "a": 1}) != task_id({"a": 2})


def test_groups_share_a_task_and_differ_in_seed() -> None:
    make = lambda name: group_rollouts(  # noqa: E731
        [{"id": "x"}, {"id": "x"}], 3, run_id="run", name=name, seed=1, mode="train", resources_id=None
    )
    rollouts = make("step-0")
    assert len({r.group_id for r in rollouts}) == 2  # the same task twice in a batch is two groups
    assert {r.task_id for r in rollouts} == {"x"}
    assert len({r.seed for r in rollouts}) == len({r.rollout_id for r in rollouts}) == 6
    assert [r.model_dump() for r in rollouts] == [r.model_dump() for r in make("step-0")]
    assert not {r.rollout_id for r in rollouts} & {r.rollout_id for r in make("step-1")}


def test_stable_seed_is_stable() -> None:
    assert stable_seed(1, "a") == stable_seed(1, "a") != stable_seed("1a")
    assert 0 <= stable_seed("x") < 2**63
