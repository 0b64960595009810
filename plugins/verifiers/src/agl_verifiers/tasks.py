"""The dataset of an environment as tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from agl_verifiers.environments import load

Task = dict[str, Any]
Split = Literal["train", "eval"]


def tasks(
    environment: str,
    split: Split = "train",
    limit: int = -1,
    arguments: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> list[Task]:
    """The tasks of an environment: its name and arguments, and a row of its dataset as ``input``.

    ``split``: ``eval`` is the environment's evaluation set; an environment that has none gives its training
    set, and says so in the log. ``limit``: at most so many; ``seed``: in an order drawn from it. Raise
    ValueError for another split, and for a row that is not JSON; it names the row.
    """
    given = dict(arguments or {})
    loaded = load(environment, given)
    if split not in ("train", "eval"):
        raise ValueError(f"split {split!r}: an environment has 'train' and 'eval'")
    rows = (loaded.get_dataset if split == "train" else loaded.get_eval_dataset)(limit, seed)
    found = [{"environment": environment, "arguments": given, "input": row} for row in rows.to_list()]
    for number, task in enumerate(found):
        try:
            json.dumps(task)
        except (TypeError, ValueError) as error:
            raise ValueError(f"row {number} of environment {environment!r} is not JSON: {error}") from None
    return found
