"""What a trained policy is compared with: scripted policies that need no training.

Each is a function of the prompt alone. ``bag_of_words`` chooses the database whose text in the prompt shares
most words with the question: it sees the same words as the policy. ``shared_letters`` sees the same and
counts runs of letters instead of words, so that "singers" and "sing" share something. ``bag_of_schema`` may
also read all tables and columns of the databases, whatever the prompt shows.

    python -m router.baselines          (in examples/)

scores the nine variants of ``shared_letters`` on the training questions, and on no others: ``CHOSEN`` is the
best of them there.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

from agentlightning.algorithms.evaluation.intervals import mean_interval
from router.datasets import Task, load
from router.distractors import KINDS
from router.prompts import Asked, parse, to_route
from router.vocabulary import content_words, schema_words, words

Choice = Callable[[Asked], str]
CHOSEN = (4, 1.0)
"""Letters of a run, and the power of the number of runs, of ``shared_letters``."""
VARIANTS = tuple((size, power) for size in (2, 3, 4) for power in (0.0, 0.5, 1.0))


def bag_of_words(asked: Asked) -> str:
    """Return the database whose text in the prompt has most words of the question; of several, the first."""
    return _most_shared(asked.question, {name: words(text) for name, text in asked.shown.items()})


def shared_letters(asked: Asked, size: int = CHOSEN[0], power: float = CHOSEN[1]) -> str:
    """Return the database whose text has most runs of ``size`` letters of the question, over (1 + the number
    of its runs) ** ``power``; of several, the first. A space before and after a word counts as a letter.
    """
    question = _runs(asked.question, size)

    def shared(name: str) -> float:
        mine = _runs(asked.shown[name], size)
        return len(question & mine) / math.pow(1 + len(mine), power)

    return max(asked.shown, key=shared)


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


def score(
    rewards: Sequence[float], tasks: Sequence[Task], *, shares: bool = True
) -> dict[str, float | list[float] | None]:
    """Return the mean reward of tasks and its 95 % interval, over the databases that they are about.
    ``shares``: whether rewards are 0 or 1, and not differences of such.
    """
    ci = mean_interval(rewards, [task["answer"] for task in tasks], "databases", shares=shares).ends
    return {"reward": sum(rewards) / len(rewards) if rewards else None, "ci": list(ci) if ci else None}


def by_kind(tasks: Sequence[Task], values: Sequence[float]) -> dict[str, tuple[list[Task], list[float]]]:
    """Return tasks and their rewards by the kind of distractors."""
    pairs = list(zip(tasks, values, strict=True))
    found = {kind: [pair for pair in pairs if pair[0]["kind"] == kind] for kind in KINDS}
    return {
        kind: ([task for task, _ in own], [value for _, value in own]) for kind, own in found.items() if own
    }


def _most_shared(question: str, of: Mapping[str, frozenset[str]]) -> str:
    asked = content_words(question)
    return max(of, key=lambda name: len(asked & of[name]))


@cache
def _runs(text: str, size: int) -> frozenset[str]:
    padded = [f" {word} " for word in re.findall(r"[a-z]+", text.lower())]
    return frozenset(word[i : i + size] for word in padded for i in range(len(word) - size + 1))


def _key(asked: Asked) -> tuple[str, frozenset[str]]:
    return asked.question, frozenset(asked.shown)


def main() -> None:
    """Print what each variant of ``shared_letters`` scores on the training questions, the best first."""
    tasks = load("train")
    found = {
        (size, power): sum(rewards(tasks, partial(shared_letters, size=size, power=power))) / len(tasks)
        for size, power in VARIANTS
    }
    for (size, power), reward in sorted(found.items(), key=lambda one: -one[1]):
        print(f"{reward:.3f}  runs of {size} letters, over (1 + runs) ** {power:g}")


if __name__ == "__main__":
    main()
