"""A taskset as tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from agl_verifiers.environments import loaded

Task = dict[str, Any]


def tasks(
    environment: str,
    limit: int = -1,
    arguments: Mapping[str, Any] | None = None,
    seed: int | None = None,
    max_turns: int = 16,
) -> list[Task]:
    """The tasks of an environment: the id of its taskset, its arguments, and the data of a task as ``input``.

    ``environment``: an importable module, or an installed package, whose ``__all__`` names a ``Taskset``.
    ``arguments``: fields of its config; a held-out set is a taskset with other arguments. ``limit``: at most
    so many, the first ones; ``seed``: in an order drawn from it. ``max_turns``: model calls of a rollout, at
    most. ValueError for a task that is not JSON; it names the task.
    """
    given = dict(arguments or {})
    if max_turns < 1:
        raise ValueError(f"max_turns is {max_turns}; a rollout has at least one turn")
    found = []
    for number, task in enumerate(loaded(environment, given, limit)):
        data = task.data.model_dump(exclude_none=True, exclude_defaults=True)
        try:
            json.dumps(data)
        except (TypeError, ValueError) as error:
            raise ValueError(f"task {number} of environment {environment!r} is not JSON: {error}") from None
        found.append({"environment": environment, "arguments": given, "max_turns": max_turns, "input": data})
    if seed is not None:
        random.Random(seed).shuffle(found)
    return found
