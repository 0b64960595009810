"""95 % intervals of a mean reward, and pass@k.

Rollouts of one task, and tasks that share a database, a template or a game (``evaluation.cluster``), resemble
each other. Such rollouts are one *unit*; units are independent. With ``n`` rollouts of mean ``m`` in ``G``
units, unit ``g`` having ``n_g`` of them with the sum ``s_g``, the standard error is that of a ratio of sums
(W. G. Cochran, Sampling Techniques, 1977, chapter 9A):

    e = sqrt( G / (G - 1) · Σ_g (s_g - n_g·m)² ) / n

With one rollout in each unit this is the sample standard deviation over ``sqrt(n)``. The interval is

- ``Wilson``: Wilson's score interval, for rewards of 0 and 1, each a unit of its own.
- ``Student's t``: ``m ± t·e`` with ``G - 1`` degrees of freedom, for other rewards and for several rollouts
  of a task.
- ``bootstrap``, for clusters: ``DRAWS`` times ``G`` clusters are drawn with replacement, and ``m*`` and
  ``e*`` are computed of them. With the 2.5 % and 97.5 % quantiles ``a`` and ``b`` of ``(m* - m) / e*`` it is
  ``[m - b·e, m - a·e]`` (the studentised bootstrap: B. Efron and R. Tibshirani, An Introduction to the
  Bootstrap, 1993, section 12.5). With five to ten clusters its coverage is near 95 %, which that of the plain
  quantiles of ``m*`` is not. Where nearly all rewards are 1, or nearly all 0, many draws have no spread and a
  quantile is infinite; then it is Wilson's over the effective number ``m·(1 - m) / e²`` of rewards, times
  ``(z / t)²`` (E. Korn and B. Graubard, Survey Methodology 24, 1998).

Intervals of rewards of 0 and 1 are cut at 0 and 1. Invariant: values that are all equal give no interval of
width 0: for 0 and 1 it is Wilson's over units, for other values there is none, and ``kind`` says so.

pass@k is how likely one of k sampled attempts at a task is right (Chen et al.,
https://arxiv.org/abs/2107.03374, section 2.1). Of n rollouts of a task, c are right. The estimator counts the
draws of k of them, without replacement, that hold a right one:

    pass@k = mean over tasks of 1 - C(n - c, k) / C(n, k)

It is unbiased, which ``1 - (1 - c/n)^k`` is not. A rollout is right if its reward is at least ``RIGHT``; one
without a reward is left out, as it is in any evaluation, and its task counts for the k that the others reach.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

Z95 = 1.959963984540054
DRAWS = 999
SEED = 0
"""Seed of the bootstrap's draws: the same rewards always have the same interval."""
RIGHT = 1.0
"""Least reward of a rollout that is right."""


class Interval(NamedTuple):
    """The 95 % interval of a mean."""

    ends: tuple[float, float] | None
    """``None``: it cannot be estimated."""
    kind: str
    """How it was computed, or why it was not."""


class _Unit(NamedTuple):
    total: float
    n: int


def mean_interval(
    rewards: Sequence[float],
    units: Sequence[Hashable] | None = None,
    cluster: str | None = None,
    *,
    shares: bool = True,
) -> Interval:
    """Return the interval of the mean of ``rewards``. ``units``: the unit of each reward; ``None``: each is
    one of its own. ``cluster``: what the units are called, if they are clusters of tasks. ``shares``: whether
    rewards of 0 and 1 are shares; differences of such are not.
    """
    by_unit: dict[Hashable, list[float]] = {}
    for place, reward in enumerate(rewards):
        by_unit.setdefault(place if units is None else units[place], []).append(reward)
    found = [_Unit(math.fsum(own), len(own)) for own in by_unit.values()]
    n, binary = len(rewards), shares and all(reward in (0.0, 1.0) for reward in rewards)
    if not found:
        return Interval(None, "no reward")
    if binary and (n == len(found) or len({*rewards}) == 1):
        over = "" if n == len(found) else f" over {len(found)} {cluster or 'tasks'}"
        return Interval(_wilson(math.fsum(rewards) / n, len(found)), f"Wilson{over}")
    if len(found) < 2:
        return Interval(None, f"one {cluster or 'task'} alone")
    mean, error = _mean_and_error(found)
    if not error > 1e-12 * abs(mean):
        return Interval(None, f"all {len(found)} {cluster or 'tasks'} have the mean {mean:g}")
    if cluster is None:
        half = t_quantile(len(found) - 1) * error
        ends, kind = (mean - half, mean + half), "Student's t"
        kind += "" if n == len(found) else f" over {len(found)} tasks"
    else:
        ends, kind = _bootstrap(found, mean, error), f"bootstrap over {len(found)} {cluster}"
    if binary and cluster is not None and not all(map(math.isfinite, ends)):
        effective = min(float(n), mean * (1 - mean) / error**2) * (Z95 / t_quantile(len(found) - 1)) ** 2
        ends, kind = (
            _wilson(mean, effective),
            f"Wilson over {len(found)} {cluster}, {effective:.3g} effective",
        )
    if binary:
        ends = max(0.0, ends[0]), min(1.0, ends[1])
    if not all(map(math.isfinite, ends)):
        return Interval(None, f"{len(found)} {cluster} are too few")
    return Interval(ends, kind)


def _wilson(mean: float, n: float) -> tuple[float, float]:
    centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n)) / (1 + Z95**2 / n)
    # A mean of 0 or 1 is an end of its interval; in floats that end can fall short of it by a last bit.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _mean_and_error(units: Sequence[_Unit]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    n = sum(unit.n for unit in units)
    mean = math.fsum(unit.total for unit in units) / n
    squares = math.fsum((unit.total - unit.n * mean) ** 2 for unit in units)
    return mean, math.sqrt(len(units) / (len(units) - 1) * squares) / n


def _bootstrap(units: Sequence[_Unit], mean: float, error: float) -> tuple[float, float]:
    """Return the studentised bootstrap's ends; infinite ones where the clusters are too few."""
    draw, found = random.Random(SEED), []
    for _ in range(DRAWS):
        again, its_error = _mean_and_error(draw.choices(units, k=len(units)))
        off, sure = again - mean, its_error > 1e-12 * abs(again)
        found.append(off / its_error if sure else math.copysign(math.inf, off) if off else 0.0)
    found.sort()
    rank = (DRAWS + 1) * 25 // 1000
    return mean - found[-rank] * error, mean - found[rank - 1] * error


@lru_cache
def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t for whole degrees of freedom: the root of its distribution,
    a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    odd, low, high = degrees % 2, 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        sine, square = math.sin(angle), math.cos(angle) ** 2
        term = math.cos(angle) if odd else 1.0
        terms = [] if degrees == 1 else [term]
        for k in range(2 + odd, degrees, 2):
            terms.append(term := term * square * (k - 1) / k)
        within = sine * math.fsum(terms)
        within = (angle + within) * 2 / math.pi if odd else within
        low, high = (angle, high) if within < 0.95 else (low, angle)
    return math.tan(low) * math.sqrt(degrees)


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
