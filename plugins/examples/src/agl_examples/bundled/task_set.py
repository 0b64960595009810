"""Sets of tasks that are graded exactly. A plugin registers a set by the hook ``agl_task_sets``.

A task is JSON: ``set`` (the name of its set), ``question``, and what the set's grader needs. Invariant: the
grader gives the set's own gold answer of every task 1.0 (``plugins/examples/tests/bundled``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning.plugins.manager import load as load_plugins, pick

Task = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """``train``, ``val``: tasks. ``grade(task, text)``: the reward of an answer, 0 to 1. ``gold(task)``: an
    answer that is right. ``system``, ``tools``: system prompt and Python functions of the bundled agent.
    """

    name: str
    train: Sequence[Task]
    val: Sequence[Task]
    grade: Callable[[Mapping[str, Any], str], float]
    gold: Callable[[Mapping[str, Any]], str]
    system: str = "You are a careful assistant."
    tools: tuple[Callable[..., Any], ...] = ()


def task_set(name: str) -> TaskSet:
    """Return the set that a plugin registers as ``name``. An error lists the sets that there are."""
    made: TaskSet = pick(load_plugins().table("agl_task_sets"), "task set", name).factory()
    return made


def tasks_of_sets(names: Sequence[str]) -> tuple[list[Task], list[Task]]:
    """Return the training tasks and the held-out tasks of these sets."""
    sets = [task_set(name) for name in names]
    return [task for one in sets for task in one.train], [task for one in sets for task in one.val]


def training_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks to train on, for a run's file."""
    return tasks_of_sets(names)[0]


def held_out_tasks(names: Sequence[str]) -> list[Task]:
    """Return the held-out tasks, for a run's file."""
    return tasks_of_sets(names)[1]


def answer_of(text: str) -> str:
    """Return the answer that a text gives."""
    before, tag, after = text.rpartition("<answer>")
    return (after.partition("</answer>")[0] if tag else before + after).strip()
