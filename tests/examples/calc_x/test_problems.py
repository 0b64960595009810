"""The generated problems: deterministic, right, and split by combination and by numbers."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from calc_x.expression import evaluate
from calc_x.problems import (
    FORMS,
    KINDS,
    NAMES,
    SLOTS,
    THINGS,
    Combination,
    combinations,
    generate,
    numbers_held_out,
    tell,
)


def _shape(question: str) -> str:
    """The question without its name, things and numbers: one text per combination."""
    for word in (*NAMES, *THINGS):
        question = re.sub(rf"\b{word}\b", "_", question)
    return re.sub(r"\d+", "#", question)


def _numbers(question: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", question))


def test_same_seed_gives_the_same_problems_and_a_prefix() -> None:
    assert generate("train", 40, seed=3) == generate("train", 40, seed=3)
    assert generate("train", 10, seed=3) == generate("train", 40, seed=3)[:10]
    assert generate("train", 40, seed=3) != generate("train", 40, seed=4)


def test_the_text_of_a_problem_is_fixed() -> None:
    text = tell(Combination("sub_div", (0, 1, 0, 0)), (20, 6, 7), "Ida", "coins")
    assert text == (
        "Ida has 20 coins. After that 6 coins get lost. Ida shares them equally among 7 friends. "
        "How many coins are in one share?"
    )


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_results_are_whole_and_follow_from_the_expression(split: str) -> None:
    problems = generate(split, 800, seed=1)  # type: ignore[arg-type]
    assert Counter(problem["kind"] for problem in problems) == dict.fromkeys(KINDS, 100)
    assert len({problem["id"] for problem in problems}) == 800
    for problem in problems:
        assert evaluate(problem["expression"]) == int(problem["result"]) >= 0
        assert all(2 <= number <= 99 for number in _numbers(problem["question"]))
        assert _numbers(problem["question"]) == _numbers(problem["expression"])


def test_no_held_out_combination_or_number_pair_is_trained() -> None:
    train, held = generate("train", 6000, seed=0), generate("heldout", 2000, seed=0)
    assert not {_shape(p["question"]) for p in train} & {_shape(p["question"]) for p in held}
    assert not any(numbers_held_out(*_numbers(p["question"])[:2]) for p in train)
    assert all(numbers_held_out(*_numbers(p["question"])[:2]) for p in held)


def test_a_quarter_of_the_combinations_is_held_out_and_each_sentence_is_trained() -> None:
    train = sum(len(combinations(kind, "train")) for kind in KINDS)
    held = sum(len(combinations(kind, "heldout")) for kind in KINDS)
    assert 0.2 < held / (train + held) < 0.3
    for kind in KINDS:
        assert combinations(kind, "heldout")
        for place, slot in enumerate(SLOTS[kind]):
            trained = {combination.forms[place] for combination in combinations(kind, "train")}
            assert trained == set(range(len(FORMS[slot])))


def test_bad_requests_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="'train' or 'heldout'"):
        generate("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        generate("train", -1)
