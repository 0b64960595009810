"""Scripted policies that bound what there is to learn: ``factory(tasks) -> script``.

A script takes the body of a chat request and returns the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router import baselines
from router.datasets import Task
from router.prompts import parse

Script = Callable[[Mapping[str, Any]], str]


def oracle(tasks: Sequence[Task]) -> Script:
    """Return the perfect policy for ``tasks``."""
    return _script(baselines.oracle(tasks))


def chance(tasks: Sequence[Task]) -> Script:
    """Return the policy that chooses blindly."""
    return _script(baselines.chance)


def bag_of_words(tasks: Sequence[Task]) -> Script:
    """Return the policy that counts words that the question shares with what the prompt shows."""
    return _script(baselines.bag_of_words)


def shared_letters(tasks: Sequence[Task]) -> Script:
    """The best script that sees what the model sees: the name that shares most letters with the question."""
    return _script(baselines.shared_letters)


def _script(choice: baselines.Choice) -> Script:
    return lambda body: choice(parse(body["messages"]))
