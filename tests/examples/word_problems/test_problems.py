"""The splits of SVAMP share no story, and gold expressions have the values of the answers."""

from __future__ import annotations

import pytest

from calc_x.expression import evaluate
from word_problems.chats import chats
from word_problems.grading import grade, value_of
from word_problems.problems import SAME_STORY, SIZES, bare, gsm8k_one_step, load, numbers_in, splits
from word_problems.prompts import SYSTEM, few_shot, prompt


def words(question: str) -> frozenset[str]:
    """The words of a problem's text, without its question."""
    body = question.rpartition(". ")[0] or question
    return frozenset("".join(c if c.isalpha() else " " for c in body.lower()).split())


def test_splits_are_whole_and_disjoint() -> None:
    found = splits(0)
    ids = [p["id"] for split in found.values() for p in split]
    assert len(ids) == len(set(ids)) == 849
    assert all(len(found[split]) >= SIZES[split] for split in ("test", "val")) and len(found["train"]) > 400
    assert load("test", limit=3) == found["test"][:3]


@pytest.mark.parametrize("seed", [0, 1])
def test_no_story_is_in_two_splits(seed: int) -> None:
    found = splits(seed)
    trained = {words(p["question"]) for p in found["train"]}
    for split in ("val", "test"):
        told = {words(p["question"]) for p in found[split]}
        assert not told & trained
        near = sum(any(len(a & b) > 0.75 * len(a | b) for b in trained) for a in told)
        assert near == 0, f"{near} problems of {split} share over 75 % of their words with a training problem"
    assert SAME_STORY < 0.75


def test_seeds_choose_other_stories_and_the_same_seed_the_same() -> None:
    first = [p["id"] for p in load("test", seed=1)]
    assert first == [p["id"] for p in load("test", seed=1)] != [p["id"] for p in load("test", seed=2)]
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        load("dev")  # type: ignore[arg-type]


def test_gold_expressions_have_the_values_of_the_answers() -> None:
    for split in splits(0).values():
        assert all(grade(p["expression"], p["result"]) == 1.0 for p in split)
    problems = gsm8k_one_step()
    assert len(problems) == len({p["question"] for p in problems}) == 213
    assert all(grade(p["expression"], p["result"]) == 1.0 for p in problems)


@pytest.mark.parametrize(
    ("given", "left"),
    [("((3+5)*2)", "(3+5)*2"), ("(3+5)*(2)", "(3+5)*(2)"), ("(8)", "8"), ("8-(2+1)", "8-(2+1)")],
)
def test_brackets_around_the_whole_are_left_out(given: str, left: str) -> None:
    assert bare(given) == left and evaluate(given) == evaluate(left)


def test_numbers_of_a_question() -> None:
    assert numbers_in("He paid $1,200 for 3.5 kg, and 4.") == ["1200", "3.5", "4"]


NO_EXPRESSION = ("43-25=18", "x=43-25", "", "1/0", "9**9**9", "__import__('os')")


@pytest.mark.parametrize(
    ("said", "reward"),
    [("43-25", 1.0), (" 18 ", 1.0), ("36/2", 1.0), ("43-24", 0.0), ("18.0000001", 0.0)],
)
def test_the_reward_is_exact(said: str, reward: float) -> None:
    assert grade(said, "18") == reward


@pytest.mark.parametrize("said", NO_EXPRESSION)
def test_a_text_that_is_no_expression_earns_nothing(said: str) -> None:
    assert value_of(said) is None and grade(said, "18") == 0.0


def test_chats_end_with_the_expression_after_the_agents_prompt() -> None:
    rows, problems = chats("val"), load("val")
    assert len(rows) == len(problems)
    for row, problem in zip(rows, problems, strict=True):
        *before, answer = row["messages"]
        assert before == prompt(problem["question"]) and answer["content"] == problem["expression"]


def test_few_shot_examples_are_of_the_training_split() -> None:
    messages = few_shot("How many?")
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 4, "user"]
    assert messages[0]["content"] == SYSTEM and messages[-1]["content"] == "How many?"
    trained = {p["question"]: p["expression"] for p in load("train")}
    shown = {messages[i]["content"]: messages[i + 1]["content"] for i in (1, 3, 5, 7)}
    assert len(shown) == 4 and all(trained[q] == expression for q, expression in shown.items())
