"""``reasoning``: orders of people from comparisons (who is the second oldest?); the answer is a name."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from agl_examples.bundled.task_set import Task, TaskSet

_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
_WORDS = (("older", "oldest"), ("taller", "tallest"), ("faster", "fastest"), ("richer", "richest"))
_PLACES = ("", "second ", "third ")


def reasoning() -> TaskSet:
    """Return the set: 64 tasks to train on and 32 others, the same every time."""
    chance, seen, tasks = random.Random(1), set[str](), list[Task]()
    while len(tasks) < 96:
        task = _task(chance)
        if task["question"] not in seen:
            seen.add(task["question"])
            tasks.append(task)
    return TaskSet(
        name="reasoning",
        train=tasks[:64],
        val=tasks[64:],
        grade=grade,
        gold=lambda task: f"Answer: {task['answer']}",
    )


def _task(chance: random.Random) -> Task:
    people = chance.sample(_NAMES, chance.randint(3, 5))
    comparative, superlative = chance.choice(_WORDS)
    clues = [f"{a} is {comparative} than {b}." for a, b in pairwise(people)]
    chance.shuffle(clues)
    place = chance.randrange(3)
    asked = f"Who is the {_PLACES[place]}{superlative}? End with a line 'Answer: NAME'."
    return {"set": "reasoning", "question": f"{' '.join(clues)} {asked}", "answer": people[place]}


def grade(task: Mapping[str, Any], text: str) -> float:
    """Return 1.0 if the last ``Answer:`` is the name, else 0.0."""
    found = re.findall(r"answer:\s*\**\s*([A-Za-z]+)", text, re.IGNORECASE)
    return float(bool(found) and found[-1].lower() == str(task["answer"]).lower())
