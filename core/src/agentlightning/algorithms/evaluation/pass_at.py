"""pass@k: how likely one of k sampled attempts at a task is right. Chen et al.,
https://arxiv.org/abs/2107.03374 (section 2.1).

Of n rollouts of a task, c are right. The estimator counts the draws of k of them, without replacement, that
hold a right one:

    pass@k = mean over tasks of 1 - C(n - c, k) / C(n, k)

It is unbiased, which ``1 - (1 - c/n)^k`` is not. A rollout is right if its reward is at least ``RIGHT``; one
without a reward is left out, as it is in any evaluation, and its task counts for the k that the others reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

RIGHT = 1.0
"""Least reward of a rollout that is right."""


def pass_at(n: int, right: int, k: int) -> float:
    """Return the estimate for one task: ``right`` of its ``n`` rollouts are right. ``ValueError`` for k
    outside 1 to n, where there is none.
    """
    if not 1 <= k <= n or not 0 <= right <= n:
        raise ValueError(f"pass@{k} of {n} rollouts, {right} of them right: k must be between 1 and {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def pass_metrics(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return ``pass@k`` for k = 1, 2, 4, … and the largest number of rollouts of a task, each over the tasks
    with at least k of them. ``rewards``: task → rewards of its rollouts.
    """
    n = max(map(len, rewards.values()), default=0)
    found: dict[str, float] = {}
    for k in sorted({*(2**i for i in range(n.bit_length()) if 2**i <= n), n} - {0}):
        each = [pass_at(len(of), sum(r >= RIGHT for r in of), k) for of in rewards.values() if len(of) >= k]
        found[f"pass@{k}"] = math.fsum(each) / len(each)
    return found
