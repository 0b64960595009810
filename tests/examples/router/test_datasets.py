"""Tasks offer the right database and three of its own set; the sets share no database."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from router.datasets import OFFERED, SETS, is_tuning, load, questions
from router.distractors import KINDS
from spider.datasets import DatasetError


def databases(spec: str) -> set[str]:
    return {question["db_id"] for question in questions(spec)}


def test_the_sets_and_their_databases_are_apart() -> None:
    assert [len(questions(spec)) for spec in SETS] == [3398, 532, 2947, 451]
    assert [len(databases(spec)) for spec in SETS] == [82, 13, 70, 12]
    assert not databases("train") & databases("dev")
    assert not databases("tuning:train") & databases("tuning:heldout")
    assert all(is_tuning(name) for name in databases("tuning:heldout"))


@pytest.mark.parametrize("spec", ["dev", "tuning:heldout"])
def test_a_task_offers_the_right_database_among_others_of_its_set(spec: str) -> None:
    tasks, own = load(spec), databases(spec)
    for task in tasks:
        assert task["answer"] in task["databases"] and set(task["databases"]) <= own
        assert len(set(task["databases"])) == OFFERED
    places = Counter(task["databases"].index(task["answer"]) for task in tasks)
    assert min(places.values()) > len(tasks) / 6  # the right one stands anywhere
    counts = Counter(task["kind"] for task in tasks)
    assert set(counts) == set(KINDS) and max(counts.values()) - min(counts.values()) <= 1
    assert json.loads(json.dumps(tasks)) == tasks


def test_tasks_are_a_function_of_the_seed() -> None:
    assert load("dev") == load("dev")
    assert load("dev", seed=1) != load("dev", seed=2)
    some = load("dev", limit=40)
    assert len(some) == 40 and all(task in load("dev") for task in some)
    assert len({task["answer"] for task in some}) > 5  # drawn, not the first 40
    assert {task["kind"] for task in load("dev", kinds=["near-name"])} == {"near-name"}


def test_every_training_question_has_its_database() -> None:
    assert len(load("train", show="tables")) == 3398


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"spec": "test"}, "unknown set 'test': choose from train, dev"),
        ({"spec": "dev", "kinds": ["hard"]}, "unknown kind of distractors 'hard'"),
        ({"spec": "dev", "kinds": []}, "kinds is empty"),
        ({"spec": "dev", "show": "all"}, "show is 'all': choose from names, tables"),
        ({"spec": "dev", "limit": -1}, "limit is -1"),
    ],
)
def test_what_cannot_be_loaded_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        load(**given)
