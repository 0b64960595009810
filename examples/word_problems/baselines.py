"""Scripted policies beside the trained one: ``factory(tasks) -> script``.

A script takes the body of a chat request and returns the answer. Only the oracle sees the gold expressions;
the others see the question's first two numbers and, for the commonest operator, the training split.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calc_x.problems import Problem
from word_problems.grading import grade
from word_problems.problems import load, numbers_in, operators_in
from word_problems.prompts import OPERATORS, prompt

Script = Callable[[Mapping[str, Any]], str]


def oracle(tasks: Sequence[Problem]) -> Script:
    """Answer with the gold expression; where a task has none that is right, with the gold answer."""
    gold = {
        task["question"]: task["expression"] if grade(task["expression"], task["result"]) else task["result"]
        for task in tasks
    }
    return lambda body: gold[_question(body)]


def random_operator(tasks: Sequence[Problem]) -> Script:
    """Answer with the first two numbers in order and a random operator; the question is the seed."""
    return lambda body: _joined(_question(body), random.Random(_question(body)).choice(OPERATORS))


def common_operator(tasks: Sequence[Problem]) -> Script:
    """Answer with the first two numbers in order and the commonest operator of the training split."""
    common = _common()
    return lambda body: _joined(_question(body), common)


def larger_first(tasks: Sequence[Problem]) -> Script:
    """As ``common_operator``, with the larger number first."""
    common = _common()
    return lambda body: _joined(_question(body), common, larger_first=True)


BASELINES = {
    "random_operator": random_operator,
    "common_operator": common_operator,
    "larger_first": larger_first,
    "oracle": oracle,
}


def rewards(factory: Callable[[Sequence[Problem]], Script], tasks: Sequence[Problem]) -> list[float]:
    """Return the reward of a scripted policy on each task."""
    script = factory(tasks)
    return [grade(script({"messages": prompt(task["question"])}), task["result"]) for task in tasks]


def _common() -> str:
    return Counter(operators_in(load("train"))).most_common(1)[0][0]


def _question(body: Mapping[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def _joined(question: str, operator: str, larger_first: bool = False) -> str:
    """Return the first two numbers of a question with an operator between; fewer numbers as they are."""
    numbers = numbers_in(question)[:2]
    if larger_first:
        numbers.sort(key=float, reverse=True)
    return operator.join(numbers) or "0"
