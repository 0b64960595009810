"""What a trained policy is compared with: scripted policies that need no training.

Each is a function of the prompt alone. ``bag_of_words`` chooses the database whose text in the prompt shares
most words with the question: it sees the same words as the policy. ``bag_of_schema`` may also read all tables
and columns of the databases, whatever the prompt shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentlightning.algorithms.intervals import mean_interval
from router.datasets import Task
from router.distractors import KINDS
from router.prompts import Asked, parse, to_route
from router.vocabulary import content_words, schema_words, words

Choice = Callable[[Asked], str]


def bag_of_words(asked: Asked) -> str:
    """Return the database whose text in the prompt has most words of the question; of several, the first."""
    return _most_shared(asked.question, {name: words(text) for name, text in asked.shown.items()})


def bag_of_schema(asked: Asked) -> str:
    """Return the database whose names of tables and columns have most words of the question; of several, the
    first.
    """
    return _most_shared(asked.question, {name: schema_words(name) for name in asked.shown})


def chance(asked: Asked) -> str:
    """Return any of the databases; the prompt's text is the seed."""
    return random.Random(repr(asked)).choice(list(asked.shown))


def oracle(tasks: Iterable[Task]) -> Choice:
    """Return the perfect policy for ``tasks``."""
    right = {_key(asked_of(task)): task["answer"] for task in tasks}
    return lambda asked: right[_key(asked)]


def asked_of(task: Task) -> Asked:
    """Return what the prompt of a task shows."""
    return parse(to_route(task["question"], task["databases"], task["show"]))


def rewards(tasks: Sequence[Task], choice: Choice) -> list[float]:
    """Return the reward of a scripted policy for each task."""
    return [float(choice(asked_of(task)) == task["answer"]) for task in tasks]


def score(rewards: Sequence[float]) -> dict[str, float | list[float] | None]:
    """Return the mean reward and its 95 % interval."""
    ci = mean_interval(rewards).ends
    return {"reward": sum(rewards) / len(rewards) if rewards else None, "ci": list(ci) if ci else None}


def by_kind(tasks: Sequence[Task], values: Sequence[float]) -> dict[str, list[float]]:
    """Return the rewards of the tasks by the kind of their distractors."""
    pairs = list(zip(tasks, values, strict=True))
    found = {kind: [value for task, value in pairs if task["kind"] == kind] for kind in KINDS}
    return {kind: rewards for kind, rewards in found.items() if rewards}


def _most_shared(question: str, of: Mapping[str, frozenset[str]]) -> str:
    asked = content_words(question)
    return max(of, key=lambda name: len(asked & of[name]))


def _key(asked: Asked) -> tuple[str, frozenset[str]]:
    return asked.question, frozenset(asked.shown)
