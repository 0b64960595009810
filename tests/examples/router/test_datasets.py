"""Tasks offer the right database and three of its own set; the sets share no database."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from agentlightning.algorithms.tasks import DatasetError
from router.datasets import OFFERED, SETS, half_of, is_tuning, load, questions
from router.distractors import KINDS


def databases(spec: str) -> set[str]:
    return {question["db_id"] for question in questions(spec)}


def test_the_sets_and_their_databases_are_apart() -> None:
    assert [len(questions(spec)) for spec in SETS] == [3398, 532, 2947, 451, 1973, 1425, 1876, 1522]
    assert [len(databases(spec)) for spec in SETS] == [82, 13, 70, 12, 47, 35, 47, 35]
    assert not databases("train") & databases("dev")
    assert not databases("tuning:train") & databases("tuning:heldout")
    assert all(is_tuning(name) for name in databases("tuning:heldout"))


def test_the_halves_hold_every_database_out_once_on_which_no_setting_was_chosen() -> None:
    first, second = databases("half:0:heldout"), databases("half:1:heldout")
    assert not first & second and first | second == databases("tuning:train")
    assert databases("half:0:train") == databases("train") - first
    assert databases("half:1:train") == databases("train") - second
    assert {half_of(name) for name in databases("tuning:heldout")} == {None}


def test_no_database_has_more_questions_than_asked_for() -> None:
    tasks = load("half:0:heldout", per_database=16)
    counts, all_of_them = Counter(task["answer"] for task in tasks), load("half:0:heldout")
    full = Counter(task["answer"] for task in all_of_them)
    assert counts == {name: min(n, 16) for name, n in full.items()} and max(full.values()) > 16
    places = {task["id"]: place for place, task in enumerate(all_of_them)}
    order = [places[task["id"]] for task in tasks]
    assert order == sorted(order)
    assert load("half:0:heldout", per_database=16) == tasks


@pytest.mark.parametrize("spec", ["dev", "tuning:heldout", "half:1:heldout"])
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
        ({"spec": "dev", "per_database": -1}, "per_database is -1"),
    ],
)
def test_what_cannot_be_loaded_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        load(**given)
