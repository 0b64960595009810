"""The reward: extraction of the answer, the equality rule, and the self-check over the bundled samples."""

from __future__ import annotations

import math
import re

import hypothesis
import pytest
from hypothesis import given, strategies as st

from calc_x import selfcheck
from calc_x.grading import ANSWER_FORM, equal, extract, grade
from calc_x.problems import Problem
from calc_x.selfcheck import check, main, mutants, variants

EXTRACTED = {
    "### ANSWER: 29 ###": "29",
    "It is so. ### ANSWER: 29 ### TERMINATE": "29",
    "###ANSWER:29###": "29",
    "### ANSWER: 1 ### ### ANSWER: 2 ###": "2",
    "### ANSWER: 1 ### ANSWER: 2 ###": "2",
    "### ANSWER: 1 ### … sorry, ### ANSWER: 2 ###": "2",
    f"### ANSWER: 1 ###\n{ANSWER_FORM}": "1",
    "### ANSWER: 5": "5",
    "###   ANSWER:   5\n###": "5",
    "### ANSWER: 5\nmore text": "5",
    "### Answer: 5 ###": "5",
    r"So \boxed{4}, no, \boxed{\frac{1}{2}}.": r"\frac{1}{2}",
    "29": "29",
    " 29 \n": "29",
    "### ANSWER:  ###": "",
}

EQUAL = [
    # plain numbers and what the rule calls arithmetic
    ("29", "29"),
    ("29.0", "29"),
    ("29.", "29"),
    ("1,000", "1000"),
    ("0", "0.0"),
    ("20+9", "29"),
    ("1e3", "1000"),
    # as people write them
    ("$72", "72"),
    ("72 apples", "72"),
    ("**72**", "72"),
    ("**72** apples", "72"),
    ("`72`", "72"),
    ("<72>", "72"),
    ("x = 72", "72"),
    ("total cost = $72", "72"),
    ("20 + 9 = 29", "29"),
    ("$1,234.00", "1234"),
    ("US$ 72", "72"),
    ("72 km/h", "72"),
    ("72 cm^2", "72"),
    ("72 m²", "72"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("−5", "-5"),
    ("(72 apples)", "72"),
    ("72 (apples)", "72"),
    ("Ida has 72 coins", "72"),
    ("72 more apples", "72"),
    ("6 people did not bring gifts", "6"),
    ("23 songs in two days", "23"),
    ("6 dozen", "72"),
    ("72k", "72000"),
    ("1.5 million", "1500000"),
    ("2 1/2 hours", "2.5"),
    # LaTeX
    (r"\boxed{72}", "72"),
    (r"\boxed{\$72}", "72"),
    ("$72$", "72"),
    (r"\(72\)", "72"),
    (r"\frac{1}{3}", "1/3"),
    (r"72\text{ apples}", "72"),
    ("1{,}234", "1234"),
    (r"72\%", "72%"),
    # percent
    ("72%", "72%"),
    ("72", "72%"),
    ("0.72", "72%"),
    ("72 percent", "72%"),
    ("75%", "0.75"),
    ("66.67%", "2/3"),
    # no whole number: rounded or cut where the answer ends, within one percent
    ("2/3", "2/3"),
    ("2/3 = around 0.666667", "2/3"),
    ("0.666667", "2/3 = around 0.666667"),
    ("0.67", "2/3"),
    ("0.66", "2/3"),
    ("0.33", "1/3"),
    ("1/3", "0.333"),
    ("18.3", "18.333333"),
    ("-18.33", "-18.333333"),
    ("3244047.1", "3244047.0999999996"),
    ("108224794", "108224794.2"),
    # letters and texts
    ("A", "A"),
    ("(a)", "A"),
    (" A ) ", "( A"),
    ("**B**", "B"),
    ("B.", "B"),
    ("Option B", "B"),
    (r"\boxed{B}", "B"),
    ("blue", "blue"),
]

UNEQUAL = [
    ("", "29"),
    ("", "0"),
    ("None", "29"),
    ("nan", "29"),
    ("1e999", "1"),
    ("__import__('os')", "1"),
    # off by one, and everything near a whole number
    ("71", "72"),
    ("73", "72"),
    ("72.4", "72"),
    ("71.99", "72"),
    ("72.001", "72"),
    ("100.9", "100"),
    ("449", "450"),
    ("451", "450"),
    ("9999", "10000"),
    ("0.0001", "0"),
    # sign, unit, scale
    ("-29", "29"),
    ("minus 29", "29"),
    ("0.72", "72"),
    ("7200", "72"),
    ("72%", "72"),
    ("72k", "72"),
    ("72M", "72"),
    ("72 thousand", "72"),
    ("72 hundred", "72"),
    ("72 dozen", "72"),
    ("72", "0.72"),
    # two answers, ranges, negations
    ("70 or 72", "72"),
    ("72 or 70", "72"),
    ("seventy or 72", "72"),
    ("72 or seventy-four", "72"),
    ("70, 72", "72"),
    ("72; 70", "72"),
    ("70 72", "72"),
    ("70-72", "72"),
    ("72±1", "72"),
    ("72 (not 70)", "72"),
    ("72/70", "72"),
    ("70 = 72", "72"),
    ("72 = 70", "72"),
    ("x = 72 or x = 70", "72"),
    ("72 apples and 70 pears", "72"),
    ("72 and a half", "72"),
    ("72 or so", "72"),
    ("at least 72", "72"),
    ("more than 72", "72"),
    (">72", "72"),
    ("x >= 72", "72"),
    ("72?", "72"),
    ("not 72", "72"),
    ("72 is wrong", "72"),
    ("half of 72", "72"),
    ("x72", "72"),
    # no whole number
    ("0.3", "1/3"),
    ("0.34", "1/3"),
    ("0.68", "2/3"),
    ("0.7", "2/3"),
    ("18.4", "18.333333"),
    ("3", "2.5"),
    ("2", "2.5"),
    ("108224793", "108224794.2"),
    ("108224795", "108224794.2"),
    ("108224795.2", "108224794.2"),
    ("12.54", "12.5"),
    ("73%", "72%"),
    ("72.4%", "72%"),
    ("0.724", "72%"),
    ("0.73", "72%"),
    # letters and texts
    ("B", "A"),
    ("A B", "A"),
    ("A or B", "A"),
    ("1", "A"),
    ("A", "1"),
    ("blue", "green"),
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
    "text",
    [
        "In a drawer Ida keeps 29 coins.",
        "In a drawer Ida keeps 29 coins. Then Ida gives 6 of them away. How many coins are there now?",
        "### ANSWER: In a drawer Ida keeps 29 coins. Then Ida gives 6 of them away. ###",
        "Let me see: 29.",
    ],
)
def test_a_number_of_the_question_is_no_answer(text: str) -> None:
    assert grade(text, "29") == 0.0


@pytest.mark.parametrize("text", ["29 coins", "The answer is 29.", "x = 29", "So the final answer: **29**"])
def test_a_message_without_the_mark_may_be_the_answer_and_nothing_else(text: str) -> None:
    assert grade(text, "29") == 1.0
    assert grade(text, "28") == 0.0


def test_the_last_marked_answer_counts() -> None:
    corrected = "### ANSWER: 70 ### … sorry, ### ANSWER: 72 ###"
    assert (grade(corrected, "72"), grade(corrected, "70")) == (1.0, 0.0)


def test_the_question_says_what_is_counted() -> None:
    assert grade("72%", "72", "What percentage of the coins is old?") == 1.0
    assert grade("72%", "72", "How much does it cost after a discount of 10%?") == 0.0
    assert grade("73%", "72", "What percentage of the coins is old?") == 0.0
    assert grade("14 dozen", "14", "How many dozen eggs are there?") == 1.0
    assert grade("14 dozen", "14", "How many eggs are in 14 boxes of a dozen?") == 0.0
    assert grade("14 dozen", "168", "How many dozen eggs are there?") == 0.0
    assert grade("3 million", "3", "How many live there, in millions?") == 1.0


@pytest.mark.parametrize("gold", range(-3, 2_000, 7))
def test_a_whole_number_is_only_equal_to_itself(gold: int) -> None:
    near = {gold + d for d in (-100, -10, -2, -1, 1, 2, 10, 100)} | {gold * 10, gold * 100}
    assert [n for n in near if n != gold and equal(str(n), str(gold))] == []


numbers = st.integers(-(10**7), 10**7)


@given(numbers, numbers, st.sampled_from(["{} or {}", "{}, {}", "{} and {}", "{}; {}", "{} ({})", "{}? {}."]))
def test_two_different_numbers_are_never_an_answer(a: int, b: int, form: str) -> None:
    hypothesis.assume(a != b)
    assert grade(f"### ANSWER: {form.format(a, b)} ###", str(a)) == 0.0
    assert grade(f"### ANSWER: {form.format(a, b)} ###", str(b)) == 0.0


@given(st.text(alphabet="0123456789.,+-*/^%()=$ xe\\{}boxedABC<>#\n", max_size=80), numbers)
def test_no_text_breaks_the_grader(text: str, gold: int) -> None:
    assert grade(text, str(gold)) in (0.0, 1.0)
    assert grade(f"### ANSWER: {text} ###", str(gold)) in (0.0, 1.0)
    assert grade(f"### ANSWER: {gold} ###", text) in (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "### ANSWER: " + " " * 200_000 + "x",
        "### ANSWER:" * 20_000,
        "# " * 200_000,
        "\\boxed{" * 50_000,
        "{" * 200_000,
        "*" * 200_000,
        "9" * 200_000,
        "### ANSWER: " + "9 " * 100_000,
        "=" * 200_000,
        "\\frac{1}{" * 30_000,
    ],
)
def test_hostile_text_is_graded_at_once(text: str) -> None:
    """A quadratic search over these would take minutes."""
    assert grade(text, "29") == 0.0


@pytest.mark.slow
def test_gold_self_check_over_the_bundled_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == "gold self-check: 2479 problems, 0 failed"


PROBLEM = Problem(id="p", question="?", result="450", source="s", kind="", expression="")


def test_the_self_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check([PROBLEM]).failures == []
    assert len(check([{**PROBLEM, "result": ""}]).failures) > 0

    def within_one_percent(text: str | None, gold: str, question: str = "") -> float:
        found = re.findall(r"-?\d+(?:\.\d+)?", (text or "").replace(",", ""))
        return float(bool(found) and math.isclose(float(found[-1]), float(gold), rel_tol=0.01))

    monkeypatch.setattr(selfcheck, "grade", within_one_percent)
    failures = " ".join(check([PROBLEM]).failures)
    for name in ("off by one, more", "off by one, less", "two answers", "scale", "unit, percent", "not"):
        assert f"the mutant {name} was accepted" in failures
    monkeypatch.setattr(selfcheck, "grade", lambda text, gold, question="": float(text == gold))
    failures = " ".join(check([PROBLEM]).failures)
    for name in ("unit", "currency", "bold", "boxed", "equation", "separators", "full stop", "corrected"):
        assert f"the variant {name} was refused" in failures


@pytest.mark.parametrize(
    "gold", ["29", "0", "-7", "-1", "2/3", "450", "72%", "18.5", "A", "E", "e", "1e6", "blue"]
)
def test_planted_mutants_are_wrong_and_variants_right(gold: str) -> None:
    assert [name for name, answer in mutants(gold).items() if equal(answer, gold)] == []
    assert [name for name, message in variants(gold).items() if not grade(message, gold)] == []
