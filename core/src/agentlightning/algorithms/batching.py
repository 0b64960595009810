"""Batches of tasks, and the ids and seeds of their rollouts.

Everything is a function of (run seed, step, position): the same run has the same tasks in the same order. A
task is plain JSON, so that an agent gets exactly the dataset's item, wherever it runs.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentlightning.types import Mode, Rollout, RolloutConfig, UsageError

PLAIN_JSON_HINT = "give plain JSON values (dict, list, str, numbers, bool, None)"


class DatasetError(UsageError, ValueError):
    """A dataset with tasks that cannot be rolled out; the message names dataset and position."""


def check_tasks(tasks: Sequence[Any], name: str) -> None:
    """Raise :class:`DatasetError` unless every task is plain JSON; ``name``: the dataset's, for the error.

    Positions count from 0. Anything else (a dataclass, tuple, set, datetime, …) would reach the agent as
    another type than the dataset holds.
    """
    for position, task in enumerate(tasks):
        try:
            _check(task, f"{name}: task {position}", "")
        except RecursionError:
            raise DatasetError(
                f"{name}: task {position} contains itself, or is nested too deeply; {PLAIN_JSON_HINT}"
            ) from None


def _check(value: Any, task: str, path: str) -> None:
    kind = type(value)  # exact types: an IntEnum would come back as an int
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _not_plain(task, "holds half of a surrogate pair", path) from None
    elif kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise _not_plain(task, f"has the key {key!r}, {_with_article(type(key))}", path)
            _check(inner, task, f"{path}.{key}")
    elif kind is list:
        for index, inner in enumerate(value):
            _check(inner, task, f"{path}[{index}]")
    elif kind is int:
        if not -(2**63) <= value < 2**64:
            raise _not_plain(task, "is an int of more than 64 bits", path)
    elif kind is float:
        if not math.isfinite(value):
            raise _not_plain(task, f"is the float {value}", path)
    elif value is not None and kind is not bool:
        raise _not_plain(task, f"is {_with_article(kind)}", path)


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"


def _not_plain(task: str, what: str, path: str) -> DatasetError:
    return DatasetError(f"{task} {what}{f' (at {path})' if path else ''}; {PLAIN_JSON_HINT}")


def stable_seed(*parts: object) -> int:
    """Return 63 bits made of the parts; equal parts give equal seeds on every machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def task_id(task: Any) -> str:
    """Return the task's own ``id``/``task_id``, else a digest of its content."""
    if isinstance(task, dict):
        for key in ("id", "task_id", "ID"):
            if key in task:
                return str(task[key])
    return hashlib.sha256(msgspec.json.encode(task, order="sorted")).hexdigest()[:16]


def task_batches(tasks: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    """Yield batches without end: epoch after epoch, each shuffled by (seed, epoch). No task is left out at
    an epoch's end.
    """
    if not tasks:
        raise DatasetError("the training dataset is empty; training needs at least one task")
    return _endless(tasks, size, seed)


def repetition_warning(tasks: Sequence[Any], size: int) -> str | None:
    """Return a message if a batch is larger than the dataset and so holds tasks more than once."""
    if not 0 < len(tasks) < size:
        return None
    often = (
        f"{size // len(tasks)} times" if size % len(tasks) == 0 else f"up to {-(-size // len(tasks))} times"
    )
    return (
        f"a step draws {size} tasks and the dataset has {len(tasks)}: each is in it {often}, as groups of "
        f"their own; batch_size {len(tasks)} asks each once"
    )


def _endless(tasks: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    pending: list[Any] = []
    epoch = 0
    while True:
        while len(pending) < size:
            order = list(tasks)
            random.Random(stable_seed(seed, "epoch", epoch)).shuffle(order)
            pending.extend(order)
            epoch += 1
        yield pending[:size]
        del pending[:size]


def group_rollouts(
    tasks: Sequence[Any],
    samples: int,
    *,
    run_id: str,
    name: str,
    seed: int,
    mode: Mode,
    resources_id: str | None,
    config: RolloutConfig | None = None,
    metadata: dict[str, Any] | None = None,
    numbers: Sequence[int] | None = None,
) -> list[Rollout]:
    """Return ``samples`` rollouts per task, one group for each task. Ids and seeds are functions of run,
    batch name and the task's number: its position in ``tasks``, or that of ``numbers``.
    """
    rollouts: list[Rollout] = []
    for position, task in zip(range(len(tasks)) if numbers is None else numbers, tasks, strict=True):
        group = f"{run_id}/{name}/{position}"
        for sample in range(samples):
            digest = hashlib.sha256(f"{group}/{sample}".encode()).hexdigest()[:16]
            rollouts.append(
                Rollout(
                    rollout_id=f"ro-{digest}",
                    input=task,
                    mode=mode,
                    run_id=run_id,
                    task_id=task_id(task),
                    group_id=group,
                    sample=sample,
                    seed=stable_seed(seed, name, position, sample),
                    resources_id=resources_id,
                    config=config or RolloutConfig(),
                    metadata=metadata or {},
                )
            )
    return rollouts
