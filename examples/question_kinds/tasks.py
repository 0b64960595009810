"""Questions of Spider with the kind of answer that they ask for, read off their gold SQL.

Training and held-out questions are about different databases. Each kind has the same number of questions.
Invariant: the tasks are a function of set, number and seed.
"""

from __future__ import annotations

import random
import re
from typing import Final, Literal, TypedDict

from router.datasets import questions

KINDS: Final = ("average", "count", "list", "most")
"""An average, a number of things, all things of a sort, and the one thing that is first in some order."""
SETS: Final = {"train": ("tuning:train",), "held-out": ("tuning:heldout", "dev")}
"""Set → sets of the router, which share no database."""
WORDS: Final = {
    "average": re.compile(r"\b(?:average|mean)\b"),
    "most": re.compile(r"\b(?:most|\w+est|least|first)\b"),
    "count": re.compile(r"\b(?:how many|count|number of)\b"),
}
"""Kind → words of a question that ask for it, the first that is found; a question with none is a list."""
_COUNT: Final = re.compile(r"select count\s*\(.*\)")


class Task(TypedDict):
    """A question and the kind of answer that it asks for."""

    id: str
    question: str
    answer: str


def kind_of(query: str) -> str | None:
    """Return the kind of a query; ``None`` for one that is of none, or of several."""
    text = " ".join(query.lower().split())
    if text.count("select") > 1:
        return None
    head = text.partition(" from ")[0]
    if head.startswith("select avg(") and "," not in head:
        return "average"
    if _COUNT.fullmatch(head) and "group by" not in text:
        return "count"
    if "order by" in text and "limit 1" in text and "(" not in head:
        return "most"
    plain = not any(word in text for word in ("group by", "order by", "limit"))
    return "list" if plain and "(" not in head else None


def kind_by_words(question: str) -> str:
    """Return the kind of a question by ``WORDS``: what a script reaches beside the model."""
    return next((kind for kind, words in WORDS.items() if words.search(question.lower())), "list")


def load(spec: Literal["train", "held-out"], n: int, seed: int = 0) -> list[Task]:
    """Return ``n`` tasks of a set, as many of each kind; ``n`` is a multiple of the number of kinds. Raise
    ``ValueError`` if the set has too few of a kind.
    """
    by_kind: dict[str, list[Task]] = {kind: [] for kind in KINDS}
    for question in (one for part in SETS[spec] for one in questions(part)):
        if (kind := kind_of(question["query"])) is not None:
            task = Task(id=question["id"], question=question["question"], answer=kind)
            by_kind[kind].append(task)
    each, rest = divmod(n, len(KINDS))
    if rest or n < 1:
        raise ValueError(f"n is {n}: give a multiple of {len(KINDS)}, so that each kind has the same number")
    rng = random.Random(f"question-kinds:{spec}:{seed}")
    for kind, found in by_kind.items():
        if len(found) < each:
            raise ValueError(f"{spec} has {len(found)} questions of kind {kind!r}, fewer than {each}")
    tasks = [task for found in by_kind.values() for task in rng.sample(found, each)]
    rng.shuffle(tasks)
    return tasks


def train_tasks(n: int = 40, seed: int = 0) -> list[Task]:
    """Return tasks to search with."""
    return load("train", n, seed)


def held_out_tasks(n: int = 80, seed: int = 0) -> list[Task]:
    """Return held-out tasks."""
    return load("held-out", n, seed)
