"""From tasks to rollouts: which tasks a step gets, and the identifiers and seeds of its rollouts.

Everything is a function of (run seed, step, position): the same run asks the same questions in the same
order.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentlightning.types import Mode, Rollout, RolloutConfig


def stable_seed(*parts: object) -> int:
    """63 bits from the parts; equal parts give equal seeds on every machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def task_id(task: Any) -> str:
    """The task's own ``id``/``task_id``, else a digest of its content."""
    if isinstance(task, dict):
        for key in ("id", "task_id", "ID"):
            if key in task:
                return str(task[key])
    return hashlib.sha256(msgspec.json.encode(task, order="sorted")).hexdigest()[:16]


def task_batches(tasks: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    """Endless batches: epoch after epoch, each shuffled by (seed, epoch); no task is left out at an
    epoch's end.
    """
    if not tasks:
        raise ValueError("the training dataset is empty")
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
) -> list[Rollout]:
    """``samples`` rollouts per task, sharing a group. Identifiers are functions of run, batch name and
    position.
    """
    rollouts: list[Rollout] = []
    for position, task in enumerate(tasks):
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
