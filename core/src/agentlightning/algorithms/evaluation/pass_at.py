"""pass@k: how likely one of k sampled attempts at a task is right. Chen et al.,
https://arxiv.org/abs/2107.03374 (section 2.1).

Of n rollouts of a task, c are right. The estimator counts the draws of k of them, without replacement, that
hold a right one:

    pass@k = mean over tasks of 1 - C(n - c, k) / C(n, k)

It is unbiased, which ``1 - (1 - c/n)^k`` is not. A rollout is right if its reward is at least ``RIGHT``; one
that failed or has no reward is wrong, as it is in any evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentlightning.credit.scoring.rewards import resolve
from agentlightning.types import Record, RolloutStatus

RIGHT = 1.0
"""Least reward of a rollout that is right."""


def pass_at(n: int, right: int, k: int) -> float:
    """Return the estimate for one task: ``right`` of its ``n`` rollouts are right. ``ValueError`` for k
    outside 1 to n, where there is none.
    """
    if not 1 <= k <= n or not 0 <= right <= n:
        raise ValueError(f"pass@{k} of {n} rollouts, {right} of them right: k must be between 1 and {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def outcomes_by_task(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return group → rewards of its rollouts; 0 for one that failed or has none."""
    found: dict[str, list[float]] = {}
    for record in records:
        rollout = record.rollout
        outcome = resolve(record).outcome if rollout.status == RolloutStatus.SUCCEEDED else None
        group = rollout.group_id or rollout.task_id or rollout.rollout_id
        found.setdefault(group, []).append(0.0 if outcome is None else outcome)
    return found


def pass_metrics(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return ``pass@k`` for k = 1, 2, 4, … and the number of rollouts that every task has."""
    n = min(map(len, rewards.values()))
    ks = sorted({*(2**i for i in range(n.bit_length()) if 2**i <= n), n})
    return {
        f"pass@{k}": math.fsum(pass_at(len(of), sum(r >= RIGHT for r in of), k) for of in rewards.values())
        / len(rewards)
        for k in ks
    }
