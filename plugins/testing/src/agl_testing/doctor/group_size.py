"""How likely a group of rollouts carries a signal, as a function of its size.

A group whose rewards are all equal has advantage 0 everywhere and teaches nothing. For rewards of 0 and 1,
task *i* succeeds with an unknown probability p_i, and a group of n carries a signal with probability
``1 - p^n - (1-p)^n``. Tasks differ: their p follow a Beta distribution that is itself unknown, so the
expectation is taken over a grid of Beta distributions, each weighted by the likelihood of what was seen
(beta-binomial; uniform prior over the mean, log-uniform over the concentration). Putting observed frequencies
into the formula instead would call a task that failed 8 times of 8 hopeless, and a flat prior for each task
would call it half open.

For graded rewards nothing is modelled: the share of all subsets of n samples that are not all equal is exact
for the samples at hand, and a lower bound beyond them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MEANS = tuple((2 * i + 1) / 60 for i in range(30))
CONCENTRATIONS = tuple(0.125 * 2 ** (i / 2) for i in range(19))  # 0.125 … 64
TARGET = 0.8
"""Share of groups with a signal that is enough."""
WORTH = 1.2
"""Factor by which doubling the rollouts must raise the share to be worth its cost."""


class Suggestion(NamedTuple):
    """A group size and its expected share of groups with a signal."""

    size: int
    informative: float
    why: str
    """``enough`` (TARGET is met), ``knee`` (doubling would hardly add groups) or ``most`` (the largest size
    considered).
    """


def binary(groups: Sequence[Sequence[float]]) -> bool:
    """Return whether every reward is 0 or 1."""
    return all(reward in (0.0, 1.0) for group in groups for reward in group)


def zero_variance_share(groups: Sequence[Sequence[float]]) -> float:
    """Return the share of groups of two or more with equal rewards; 1 if there are no such groups."""
    judged = [group for group in groups if len(group) > 1]
    return sum(len(set(group)) == 1 for group in judged) / len(judged) if judged else 1.0


def informative(groups: Sequence[Sequence[float]], n: int) -> float:
    """Return the expected share of groups of ``n`` rollouts with unequal rewards. ``groups`` holds observed
    rewards by task.
    """
    seen = [group for group in groups if group]
    if n < 2 or not seen:
        return 0.0
    if binary(seen):
        return _binary(tuple(sorted((sum(map(int, group)), len(group)) for group in seen)), n)
    return math.fsum(_subsets(group, n) for group in seen) / len(seen)


def suggest(groups: Sequence[Sequence[float]], most: int) -> Suggestion:
    """Return the smallest size up to ``most`` at which :data:`TARGET` of the groups carry a signal.

    If no size reaches the target, return the smallest one at which doubling the cost adds less than a fifth
    of the groups: more rollouts give no signal for tasks out of reach.
    """
    for n in range(2, most + 1):
        if (share := informative(groups, n)) >= TARGET:
            return Suggestion(n, share, "enough")
    for n in range(2, most):
        if (share := informative(groups, n)) and informative(groups, 2 * n) < WORTH * share:
            return Suggestion(n, share, "knee")
    return Suggestion(most, informative(groups, most), "most")


def _subsets(group: Sequence[float], n: int) -> float:
    """Return the share of subsets of ``n`` samples (all, if there are fewer) that are not all equal."""
    n = min(n, len(group))
    if n < 2:
        return 0.0
    same = sum(math.comb(count, n) for count in Counter(group).values())
    return 1.0 - same / math.comb(len(group), n)


def _binary(counts: tuple[tuple[int, int], ...], n: int) -> float:
    return math.fsum(
        weight * (1.0 - _all_ones(a, b, n) - _all_ones(b, a, n)) for a, b, weight in _population(counts)
    )


@lru_cache(maxsize=64)
def _population(counts: tuple[tuple[int, int], ...]) -> list[tuple[float, float, float]]:
    """Return (a, b, weight) of Beta distributions of the tasks' success probabilities. Weights sum to 1."""
    found = []
    for mean in MEANS:
        for strength in CONCENTRATIONS:
            a, b = mean * strength, (1.0 - mean) * strength
            likelihood = math.fsum(_log_beta(a + s, b + m - s) - _log_beta(a, b) for s, m in counts)
            found.append((a, b, likelihood))
    top = max(likelihood for _, _, likelihood in found)
    total = math.fsum(math.exp(likelihood - top) for _, _, likelihood in found)
    return [(a, b, math.exp(likelihood - top) / total) for a, b, likelihood in found]


def _all_ones(a: float, b: float, n: int) -> float:
    """Return E[p^n] for p ~ Beta(a, b)."""
    return math.exp(_log_beta(a + n, b) - _log_beta(a, b))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
