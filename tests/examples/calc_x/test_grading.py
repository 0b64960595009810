"""The reward: extraction of the answer, the equality rule, and the self-check over the bundled samples."""

from __future__ import annotations

import pytest

from calc_x.grading import ANSWER_FORM, equal, extract, grade
from calc_x.selfcheck import check, main, wrong_answer

EXTRACTED = {
    "### ANSWER: 29 ###": "29",
    "It is so. ### ANSWER: 29 ### TERMINATE": "29",
    "###ANSWER:29###": "29",
    "### ANSWER: 1 ### ### ANSWER: 2 ###": "1",
    "### ANSWER: 5": "5",
    "###   ANSWER:   5\n###": "5",
    "### ANSWER: 5\nmore text": "### ANSWER: 5\nmore text",
    "29": "29",
    " 29 \n": "29",
    "### ANSWER:  ###": "###",
}

EQUAL = [
    ("29", "29"),
    ("29.0", "29"),
    ("1,000", "1000"),
    ("2/3", "2/3"),
    ("2/3 = around 0.666667", "2/3"),
    ("0.666667", "2/3 = around 0.666667"),
    ("0.67", "2/3"),
    ("100.9", "100"),
    ("A", "A"),
    ("(a)", "A"),
    (" A ) ", "( A"),
    ("75%", "0.75"),
    ("0", "0.0"),
    ("20+9", "29"),
    ("blue", "blue"),
]

UNEQUAL = [
    ("", "29"),
    ("", "0"),
    ("29 apples", "29"),
    ("$29", "29"),
    ("101.1", "100"),
    ("0.0001", "0"),
    ("-29", "29"),
    ("B", "A"),
    ("A B", "A"),
    ("1", "A"),
    ("A", "1"),
    ("None", "29"),
    ("nan", "29"),
    ("1e999", "1"),
    ("blue", "green"),
    ("__import__('os')", "1"),
]


@pytest.mark.parametrize("text", EXTRACTED)
def test_extract(text: str) -> None:
    assert extract(text) == EXTRACTED[text]


@pytest.mark.parametrize(("answer", "gold"), EQUAL)
def test_equal(answer: str, gold: str) -> None:
    assert equal(answer, gold)
    assert grade(f"### ANSWER: {answer} ###", gold) == 1.0


@pytest.mark.parametrize(("answer", "gold"), UNEQUAL)
def test_unequal(answer: str, gold: str) -> None:
    assert not equal(answer, gold)
    assert grade(f"### ANSWER: {answer} ###", gold) == 0.0


def test_no_message_and_the_request_itself_earn_nothing() -> None:
    assert grade(None, "29") == grade("", "29") == grade(ANSWER_FORM, "29") == 0.0


@pytest.mark.parametrize(
    "text", ["### ANSWER: " + " " * 200_000 + "x", "### ANSWER:" * 20_000, "# " * 200_000]
)
def test_hostile_text_is_graded_at_once(text: str) -> None:
    """A quadratic search over these would take minutes."""
    assert grade(text, "29") == 0.0


def test_gold_self_check_over_the_bundled_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == "gold self-check: 2479 problems, 0 failed"


def test_the_self_check_can_fail() -> None:
    problem = {"id": "p", "question": "?", "source": "s", "kind": "", "expression": ""}
    assert check([{**problem, "result": "29"}]).failures == []  # type: ignore[typeddict-item]
    assert len(check([{**problem, "result": ""}]).failures) == 1  # type: ignore[typeddict-item]


@pytest.mark.parametrize("gold", ["29", "0", "-7", "-1", "2/3", "A", "E", "e", "1e6", "blue"])
def test_planted_wrong_answers_are_wrong(gold: str) -> None:
    assert not equal(wrong_answer(gold), gold)
