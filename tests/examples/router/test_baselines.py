"""Scripted policies see the prompt and nothing else; their scores come with intervals."""

from __future__ import annotations

from functools import partial

import pytest

from router import headroom
from router.baselines import (
    CHOSEN,
    VARIANTS,
    asked_of,
    bag_of_schema,
    bag_of_words,
    by_kind,
    chance,
    oracle,
    rewards,
    score,
    shared_letters,
)
from router.datasets import load
from router.prompts import Asked, to_route

DEV = load("dev")


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
    """An interval is over the 13 databases, and so wider than that of 532 independent questions."""
    words = rewards(DEV, bag_of_words)
    assert score(rewards(DEV, oracle(DEV)), DEV)["reward"] == 1.0
    scored = score(words, DEV)
    assert scored["reward"] == pytest.approx(0.632, abs=5e-4)
    assert score(rewards(DEV, bag_of_schema), DEV)["reward"] == pytest.approx(0.974, abs=5e-4)
    assert score(rewards(DEV, shared_letters), DEV)["reward"] == pytest.approx(0.726, abs=5e-4)
    low, high = scored["ci"]
    assert high - low > 0.4  # Wilson's of independent questions is 0.08 wide
    low, high = score(rewards(DEV, chance), DEV)["ci"]
    assert low < 0.25 < high
    split = by_kind(DEV, words)
    assert sum(len(own) for own, _ in split.values()) == 532 and len(split) == 3
    assert sum(sum(values) for _, values in split.values()) == sum(words)


def test_the_variant_of_shared_letters_is_the_best_on_training_questions() -> None:
    tasks = load("train")
    found = {of: sum(rewards(tasks, partial(shared_letters, size=of[0], power=of[1]))) for of in VARIANTS}
    assert max(found, key=found.__getitem__) == CHOSEN


def test_shared_letters_see_parts_of_words() -> None:
    asked = Asked("Who sings?", {"car_1": "car_1", "singing": "singing"})
    assert bag_of_words(asked) == "car_1" and shared_letters(asked) == "singing"
    # One shared run of two counts more than one of many.
    asked = Asked("Which pets?", {"petshops_of_towns": "petshops_of_towns", "pets_1": "pets_1"})
    assert shared_letters(asked) == "pets_1"


def test_nothing_has_no_score() -> None:
    assert score([], []) == {"reward": None, "ci": None}


def test_scripts_answer_chat_requests() -> None:
    tasks = DEV[:30]
    bodies = [{"messages": to_route(t["question"], t["databases"])} for t in tasks]
    assert [headroom.oracle(tasks)(body) for body in bodies] == [t["answer"] for t in tasks]
    assert [headroom.bag_of_words(tasks)(b) for b in bodies] == [bag_of_words(asked_of(t)) for t in tasks]
    chosen = [headroom.chance(tasks)(body) for body in bodies]
    assert chosen == [headroom.chance(tasks)(body) for body in bodies]  # the prompt is the seed
    assert all(name in t["databases"] for name, t in zip(chosen, tasks, strict=True))
