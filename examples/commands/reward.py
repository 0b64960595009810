"""The reward of a program that prints an answer: 1.0 if it is right, else 0.0."""

from __future__ import annotations

from typing import Any

from agentlightning import CommandResult
from calc_x.grading import grade


def right(task: dict[str, Any], result: CommandResult) -> float | None:
    """Grade the last message of the program; no reward if the program failed."""
    return grade(result.stdout, task["result"]) if result.exit_code == 0 else None
