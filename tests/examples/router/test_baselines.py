"""Scripted policies see the prompt and nothing else; their scores come with intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from router import datasets, headroom
from router.baselines import (
    asked_of,
    bag_of_schema,
    bag_of_words,
    by_kind,
    chance,
    oracle,
    rewards,
    score,
)
from router.datasets import load
from router.prompts import Asked, to_route

DEV = load("dev")


def cell(values: list[float]) -> str:
    """A reward and its interval as the page writes them."""
    scored = score(values)
    low, high = scored["ci"]
    return f"{scored['reward']:.3f} ({low:.2f}–{high:.2f})"


def row(values: list[float]) -> str:
    return " | ".join(map(cell, [values, *by_kind(DEV, values).values()]))


def test_a_shared_word_of_the_name_decides() -> None:
    asked = Asked("Which orchestras gave concerts?", {"car_1": "car_1", "orchestra": "orchestra"})
    assert bag_of_words(asked) == bag_of_schema(asked) == "orchestra"
    assert bag_of_words(Asked("Who?", {"car_1": "car_1", "orchestra": "orchestra"})) == "car_1"  # a tie


def test_only_the_schema_has_the_words_of_tables() -> None:
    asked = Asked("How many conductors are there?", {"car_1": "car_1", "orchestra": "orchestra"})
    assert (bag_of_words(asked), bag_of_schema(asked)) == ("car_1", "orchestra")
    shown = asked._replace(shown={"car_1": "car_1: cars_data", "orchestra": "orchestra: conductor"})
    assert bag_of_words(shown) == "orchestra"


def test_scores_on_the_development_questions() -> None:
    """The figures that the README gives."""
    found = {
        "oracle": rewards(DEV, oracle(DEV)),
        "words": rewards(DEV, bag_of_words),
        "schema": rewards(DEV, bag_of_schema),
        "chance": rewards(DEV, chance),
    }
    assert score(found["oracle"]) == {"reward": 1.0, "ci": [pytest.approx(0.9928, abs=1e-4), 1.0]}
    assert score(found["words"])["reward"] == pytest.approx(0.632, abs=5e-4)
    assert score(found["schema"])["reward"] == pytest.approx(0.974, abs=5e-4)
    low, high = score(found["chance"])["ci"]
    assert low < 0.25 < high
    page = (Path(datasets.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert f"| {row(found['words'])} |" in page and f"| {row(found['schema'])} |" in page
    harder = load("dev", kinds=["near-name"], show="tables")
    assert f"scores {cell(rewards(harder, bag_of_words))} there" in page
    split = by_kind(DEV, found["words"])
    assert sum(map(len, split.values())) == 532 and len(split) == 3
    assert sum(map(sum, split.values())) == sum(found["words"])


def test_nothing_has_no_score() -> None:
    assert score([]) == {"reward": None, "ci": None}


def test_scripts_answer_chat_requests() -> None:
    tasks = DEV[:30]
    bodies = [{"messages": to_route(t["question"], t["databases"])} for t in tasks]
    assert [headroom.oracle(tasks)(body) for body in bodies] == [t["answer"] for t in tasks]
    assert [headroom.bag_of_words(tasks)(b) for b in bodies] == [bag_of_words(asked_of(t)) for t in tasks]
    chosen = [headroom.chance(tasks)(body) for body in bodies]
    assert chosen == [headroom.chance(tasks)(body) for body in bodies]  # the prompt is the seed
    assert all(name in t["databases"] for name, t in zip(chosen, tasks, strict=True))
