"""Every bundled set of tasks: gold answers are right, wrong ones are not, no query or function escapes."""

from __future__ import annotations

import pytest

from agentlightning.plugins.manager import load
from agentlightning.types import UsageError
from agl_examples.bundled.math import calculate
from agl_examples.bundled.task_set import TaskSet, held_out_tasks, task_set, training_tasks

NAMES = ("math", "reasoning", "sql-generation")


def test_the_sets_are_registered() -> None:
    assert {*NAMES, "coding"} <= set(load().table("agl_task_sets"))
    with pytest.raises(UsageError, match="math"):
        task_set("astrology")


def check(found: TaskSet, share: int = 1) -> None:
    questions = [task["question"] for task in [*found.train, *found.val]]
    assert found.train and found.val and len(questions) == len(set(questions))
    for task in [*found.train, *found.val][::share]:
        assert task["set"] == found.name
        assert found.grade(task, found.gold(task)) == 1.0, task
        assert found.grade(task, "") == found.grade(task, "I do not know.") == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_gold_answers_are_right_and_others_are_not(name: str) -> None:
    check(task_set(name))


@pytest.mark.slow
def test_gold_functions_are_right() -> None:
    check(task_set("coding"))


def test_a_function_is_run_and_compared() -> None:
    coding = task_set("coding")
    task = next(one for one in coding.train if one["name"] == "square")
    assert coding.grade(task, coding.gold(task)) == 1.0
    assert coding.grade(task, "```python\ndef square(x):\n    return x + x\n```") == 0.0
    greedy = "```python\ndef square(x):\n    return len([0] * 10**9) and x * x\n```"
    assert coding.grade(task, greedy) == 0.0
    told = "```python\nprint('x' * 2**{})\ndef square(x):\n    return x * x\n```"
    assert [coding.grade(task, told.format(power)) for power in (10, 24)] == [1.0, 0.0], "output has a limit"


def test_sets_are_joined() -> None:
    assert len(training_tasks(["math", "reasoning"])) == 160 + 64
    assert {task["set"] for task in held_out_tasks(["math", "sql-generation"])} == {"math", "sql-generation"}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("### ANSWER: 61 ###", True),
        ("First ### ANSWER: 3 ### no: ### ANSWER: 61.0 ###", True),
        ("### ANSWER: 122/2 ###", True),
        ("### ANSWER: 1,061 ###", False),
        ("61", False),
        ("### ANSWER: __import__('os') ###", False),
    ],
)
def test_a_number_is_read_exactly(text: str, right: bool) -> None:
    math = task_set("math")
    assert math.grade({"set": "math", "question": "?", "answer": "61"}, text) == float(right)


def test_the_calculator() -> None:
    assert [calculate(text) for text in ("13+48", "(2-5)*4", "7/2")] == ["61", "-12", "3.5"]
    assert calculate("1/0").startswith("error") and calculate("f(1)").startswith("error: only numbers")
    assert calculate("9**9").startswith("error")


@pytest.mark.parametrize(
    "text",
    [
        "```sql\nDELETE FROM city\n```",
        "```sql\nATTACH 'f' AS g\n```",
        "```sql\nWITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n\n```",
        "```sql\nSELECT 1; DELETE FROM city\n```",
    ],
)
def test_a_query_only_reads_and_ends(text: str) -> None:
    sql = task_set("sql-generation")
    assert sql.grade(sql.train[0], text) == 0.0


def test_a_query_makes_no_texts_without_end() -> None:
    sql = task_set("sql-generation")
    made = {**sql.train[0], "answer": "SELECT length(hex(zeroblob(1000)))"}
    long = {**made, "answer": "SELECT length(hex(zeroblob(60000)))"}
    assert [sql.grade(one, one["answer"]) for one in (made, long)] == [1.0, 0.0]
