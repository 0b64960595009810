"""Tasks to rollouts: everything is a function of seed and position."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import re
import uuid
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from agentlightning.algorithms.tasks import (
    DatasetError,
    check_tasks,
    group_rollouts,
    repetition_warning,
    stable_seed,
    task_batches,
    task_id,
)
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError


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
    with pytest.raises(DatasetError, match="empty"):
        task_batches([], 1, seed=0)


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


@dataclasses.dataclass
class Point:
    q: int


class Colour(enum.IntEnum):
    RED = 1


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"when": datetime.datetime(2020, 1, 1)}, r"task 1 is a datetime \(at \.when\); give plain JSON"),
        (Point(1), r"task 1 is a Point; give plain JSON values \(dict, list, str, numbers, bool, None\)"),
        ({"a": [0, (1, 2)]}, r"is a tuple \(at \.a\[1\]\)"),
        ([{1, 2}], r"is a set \(at \[0\]\)"),
        (decimal.Decimal("1.5"), "is a Decimal"),
        (uuid.UUID(int=1), "is an? UUID"),
        ({"c": Colour.RED}, r"is a Colour \(at \.c\)"),
        (b"x", "is a bytes"),
        ({"x": object()}, r"is an object \(at \.x\)"),
        ({"m": {1: 2}}, r"has the key 1, an int \(at \.m\)"),
        (float("nan"), "is the float nan"),
        (2**64, "more than 64 bits"),
        ("\ud800", "surrogate"),
        (CIRCLE, "contains itself"),
    ],
)
def test_tasks_that_an_agent_would_get_as_something_else_are_refused(task: Any, message: str) -> None:
    with pytest.raises(UsageError, match=r"environment\.val: task 1 ") as refused:
        check_tasks([{"ok": True}, task], "environment.val")
    assert refused.match(message)


PLAIN_TASKS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN_TASKS)
def test_what_the_check_passes_survives_json_and_gets_an_id(task: Any) -> None:
    check_tasks([task], "train")
    assert msgspec.json.decode(msgspec.json.encode(task)) == task
    assert task_id(task)


@pytest.mark.parametrize(
    ("tasks", "size", "said"),
    [
        (2, 64, "a step draws 64 tasks and the dataset has 2: each is in it 32 times, .*batch_size 2 asks"),
        (40, 64, "up to 2 times"),
        (8, 8, None),
        (9, 8, None),
        (0, 8, None),
    ],
)
def test_a_batch_that_is_larger_than_the_dataset_is_said(tasks: int, size: int, said: str | None) -> None:
    found = repetition_warning(range(tasks), size)
    assert found is None if said is None else re.search(said, found or "")


async def test_plain_tasks_reach_the_agent_as_they_are() -> None:
    tasks: list[Any] = [{"a": [1, 2.5, None, True, "é"]}, "text", 2**64 - 1, -(2**63), []]
    check_tasks(tasks, "train")
    store = SQLiteStore(":memory:")
    for task in tasks:
        await store.enqueue_rollout(task)
        lease = await store.dequeue_rollout("w")
        assert lease is not None and lease.rollout.input == task
        assert type(lease.rollout.input) is type(task)
    await store.close()
