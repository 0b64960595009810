"""The reward gives right answers 1 and others 0, and the calculator calculates."""

from __future__ import annotations

import json
from pathlib import Path

from reward import score
from tools import calculate

LINES = Path(__file__).with_name("val.jsonl").read_text(encoding="utf-8").split("\n")
TASKS = [json.loads(line) for line in LINES if line]


def test_right_answers_are_rewarded() -> None:
    for task in TASKS:
        assert score(task, f"### ANSWER: {task['answer']} ###") == 1.0
        assert score(task, "### ANSWER: no ###") == 0.0


def test_the_calculator_takes_arithmetic_and_nothing_else() -> None:
    assert calculate("2 * (3 + 4)") == "14"
    assert calculate("__import__('os')").startswith("error")
