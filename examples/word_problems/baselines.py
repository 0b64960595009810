"""Scripted policies beside the trained one: ``factory(tasks) -> script``.

A script takes the body of a chat request and returns the answer. Only the oracle sees the gold expressions.
``linear`` learns from the training split as the policy does, with one weight for each word and form; the
others see the question's first two numbers and, for the commonest operator, the training split.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

from calc_x.problems import Problem
from word_problems.grading import grade
from word_problems.problems import load, numbers_in, operators_in
from word_problems.prompts import OPERATORS, prompt

Script = Callable[[Mapping[str, Any]], str]
PAIRS: Mapping[str, Callable[[list[str]], list[str]]] = {
    "first two": lambda numbers: numbers[:2],
    "last two": lambda numbers: numbers[-2:],
    "first and last": lambda numbers: [*numbers[:1], *numbers[-1:]],
}
"""Two numbers of a question."""
PASSES = 3
"""Of the linear script over its training problems: of 3, 5, 10 and 20 the best on the validation split."""


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


def linear(tasks: Sequence[Problem]) -> Script:
    """Answer with the operator and the pair of numbers, the larger first, that a linear classifier of the
    question's words and pairs of words chooses; it is an averaged perceptron, trained on the training split.
    """
    weights = _learned()

    def script(body: Mapping[str, Any]) -> str:
        question = _question(body)
        return _formed(question, max(FORMS, key=lambda form: _sum(weights, form, _marks(question))))

    return script


FORMS = tuple(product(OPERATORS, PAIRS))
"""Operator and pair of numbers."""


@cache
def _learned() -> Mapping[tuple[str, ...], float]:
    """Return the weight of (operator, pair, mark): the mean over all updates (Freund and Schapire, 1999)."""
    now: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    problems = [(_marks(p["question"]), _right(p)) for p in load("train")]
    problems = [(marks, right) for marks, right in problems if right]
    steps = PASSES * len(problems)
    for step in range(steps):
        marks, right = problems[step % len(problems)]
        best, said = (max(of, key=lambda form: _sum(now, form, marks)) for of in (right, FORMS))
        for form, change in ((best, 1), (said, -1)) if best != said else ():
            for mark in marks:
                now[(*form, mark)] += change
                total[(*form, mark)] += change * (steps - step)
    return total


def _right(problem: Problem) -> list[tuple[str, str]]:
    return [form for form in FORMS if grade(_formed(problem["question"], form), problem["result"])]


def _marks(question: str) -> frozenset[str]:
    words = re.findall(r"[a-z]+|#", re.sub(r"\d[\d,.]*\d|\d", "#", question.lower()))
    return frozenset([*words, *map(" ".join, pairwise(words)), str(words.count("#"))])


def _sum(weights: Mapping[tuple[str, ...], float], form: tuple[str, str], marks: frozenset[str]) -> float:
    return sum(weights.get((*form, mark), 0.0) for mark in marks)


def _formed(question: str, form: tuple[str, str]) -> str:
    operator, pair = form
    numbers = PAIRS[pair](numbers_in(question)) or ["0"]
    return operator.join(sorted(numbers, key=float, reverse=True))


BASELINES = {
    "random_operator": random_operator,
    "common_operator": common_operator,
    "larger_first": larger_first,
    "linear": linear,
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
