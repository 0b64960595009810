"""Refill: a step goes on rolling out until enough of its groups have something to learn from.

Where all rollouts of a task do equally well, its group has no gradient, and a batch may be left with few
groups that have one. Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) rolls out further tasks instead,
here up to ``dynamic_sampling`` further batches in a step. All groups with a spread are trained, those beyond
``batch_size`` too: they are paid for, and a group's advantages do not depend on how many others there are.

Invariant: the further batches of a step are a function of run seed, step and their number. So they take no
task from any other step, nothing about them has to be remembered in a checkpoint, and a step that is rolled
out again asks the same tasks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from agentlightning.algorithms.rollouts.batching import stable_seed
from agentlightning.types import Batch, Rollout


def extra_batches(
    tasks: Sequence[Any], size: int, seed: int, step: int, own: Sequence[Any] = ()
) -> Iterator[list[Any]]:
    """Endless batches of ``size`` of ``tasks`` for a step. None occurs twice, and none that is among ``own``
    (those that the step has anyway), before all have occurred.
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
    """How many of the groups have a call that is trained, under a recipe with ``filter_zero_std_groups``."""
    trained = {ledger.rollout_id for ledger in batch.ledgers if ledger.trained}
    return sum(any(rollout.rollout_id in trained for rollout in group) for group in groups)
