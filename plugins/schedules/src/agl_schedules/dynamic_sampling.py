"""Dynamic sampling: roll out extra batches until enough groups of a step have a spread.

If all rollouts of a task do equally well, its group has no gradient, and a batch may have few groups with
one. Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) rolls out more tasks, here up to
``dynamic_sampling`` extra batches in a step. All groups with a spread are trained, also those beyond
``batch_size``: their rollouts are paid for, and a group's advantages do not depend on the number of groups.

Invariant: the extra batches of a step are a function of run seed, step and their number. So they take no
task from another step, no checkpoint has to remember them, and a step that is rolled out again has the same
tasks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from agentlightning.algorithms.tasks import stable_seed
from agentlightning.types import Batch, Rollout


def extra_batches(
    tasks: Sequence[Any], size: int, seed: int, step: int, own: Sequence[Any] = ()
) -> Iterator[list[Any]]:
    """Yield batches of ``size`` of ``tasks`` for a step, without end. A task occurs again, or is one of
    ``own`` (the step's own batch), only after all others have occurred.
    """
    draw = random.Random(stable_seed(seed, "refill", step))
    passed: set[int] = set()
    batch: list[Any] = []
    while True:
        if len(passed) == len(tasks):
            passed, own = set(), ()
        position = draw.randrange(len(tasks))
        if position in passed:
            continue
        passed.add(position)
        if tasks[position] in own:
            continue
        batch.append(tasks[position])
        if len(batch) == size:
            yield batch
            batch = []


def groups_with_spread(batch: Batch, groups: Sequence[Sequence[Rollout]]) -> int:
    """Return how many groups have a trained call, under a recipe with ``filter_zero_std_groups``."""
    trained = {ledger.rollout_id for ledger in batch.ledgers if ledger.trained}
    return sum(any(rollout.rollout_id in trained for rollout in group) for group in groups)


def refill_metrics(batch: Batch, groups: Sequence[Sequence[Rollout]], size: int) -> dict[str, float]:
    """Return the metrics of a step; ``size``: tasks of a batch, ``groups``: the rollouts of each task."""
    spread = groups_with_spread(batch, groups)
    return {
        "dynamic_sampling/batches": float(math.ceil(len(groups) / size) - 1),
        "dynamic_sampling/groups": float(len(groups)),
        "dynamic_sampling/without_spread": float(len(groups) - spread),
        "dynamic_sampling/short": float(max(0, size - spread)),
    }
