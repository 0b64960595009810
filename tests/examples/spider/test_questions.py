"""Generated questions: what is asked, what is held out, and that every mistake shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from spider.databases import find
from spider.questions import (
    KINDS,
    MISTAKES,
    SQL,
    WORDINGS,
    Combination,
    Split,
    ask,
    combinations,
    fill,
    generate,
    questions,
    thresholds,
    words,
)
from spider.sql.execution import SqlError, run
from spider.sql.matching import match


def test_a_combination_is_told_and_filled_in() -> None:
    combination = Combination("below", "loan_1", "customer", "cust_name", "no_of_loans")
    assert ask(combination, 0, 2) == "List the cust name of each customer with no of loans under 2."
    assert fill(SQL["below"], combination, 2) == "SELECT cust_name FROM customer WHERE no_of_loans < 2"
    assert [words(name) for name in ("ratingDate", "isAVA", "HS", "Voting_record", "yCard")] == [
        "rating date", "is ava", "hs", "voting record", "y card",
    ]  # fmt: skip


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_gold_query_returns_something_and_its_mistake_something_else(split: str) -> None:
    """But for four combinations of the training side, where the rows of the mistake tie with the right."""
    failing, tied = Counter[str](), Counter[str]()
    for kind in KINDS:
        assert len(combinations(kind, split)) >= 5  # type: ignore[arg-type]
        for combination in combinations(kind, split):  # type: ignore[arg-type]
            for value in thresholds(combination) if kind == "below" else (0,):
                database = find(combination.database)[0]
                gold = fill(SQL[kind], combination, value)
                assert run(database, gold).rows
                if kind in MISTAKES:
                    mistaken = fill(MISTAKES[kind], combination, value)
                    tied[kind] += match(gold, mistaken, [database]).match
                    try:
                        run(database, mistaken)
                    except SqlError:
                        failing[kind] += 1
    assert set(failing) == {"avg", "highest"}
    assert +tied == (Counter(lowest=3, desc=1) if split == "train" else Counter())


def test_the_kinds_come_in_turn_and_a_shorter_list_is_a_prefix() -> None:
    drawn = generate("train", 240, seed=3)
    assert Counter(question["kind"] for question in drawn) == dict.fromkeys(KINDS, 20)
    assert generate("train", 24, seed=3) == drawn[:24]
    assert len({question["id"] for question in drawn}) == 240
    assert generate("train", 24, seed=4) != drawn[:24]


def _every(split: Split) -> Iterator[tuple[Combination, int]]:
    """All combinations of a side, with all values that may be asked for."""
    for kind in KINDS:
        for combination in combinations(kind, split):
            yield from ((combination, v) for v in (thresholds(combination) if kind == "below" else (0,)))


def test_nothing_that_is_held_out_can_be_trained() -> None:
    """Neither a gold SQL nor a question: of all that may be asked, in all words."""
    golds = [
        {(c.database, fill(SQL[c.kind], c, v)) for c, v in _every(split)} for split in ("train", "heldout")
    ]
    asked = [
        {ask(c, wording, v) for c, v in _every(split) for wording in range(len(WORDINGS[c.kind]))}
        for split in ("train", "heldout")
    ]
    assert not golds[0] & golds[1] and not asked[0] & asked[1]
    assert len(golds[0]) > len(golds[1]) > 200


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_held_out_question_comes_twice(seed: int) -> None:
    every = list(questions("heldout", seed))
    assert len({(q["db_id"], q["question"]) for q in every}) == len(every) > 400
    assert generate("heldout", 252, seed) == every[:252]
    assert {q["query"] for q in every} == {fill(SQL[c.kind], c, v) for c, v in _every("heldout")}
    kinds = Counter(q["kind"] for q in every[:252])
    assert min(kinds.values()) >= 10 and max(kinds.values()) <= 28
    with pytest.raises(ValueError, match=f"there are only {len(every)} held-out ones"):
        generate("heldout", len(every) + 1, seed)


def test_a_quarter_of_the_combinations_is_held_out() -> None:
    for kind in KINDS:
        train, held = len(combinations(kind, "train")), len(combinations(kind, "heldout"))
        assert 0.24 < held / (train + held) < 0.3
        assert len(WORDINGS[kind]) == 2


def test_bad_requests_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="'train' or 'heldout'"):
        generate("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        generate("train", -1)
