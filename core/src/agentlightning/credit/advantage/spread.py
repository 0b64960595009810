"""Mean, standard deviation, and the spread of a group whose rollouts have several values each.

The spread of a group is pooled over its residuals ``r_it``, the credit of rollout i's call t minus the
location it is compared with:

    s² = 1 / (n - 1) · Σ_i mean_t( k_t · r_it² )          over the n rollouts, each weighing the same

``k_t = m_t (n - 1) / ((m_t - 1) n)`` gives every location the same n - 1: ``m_t`` rollouts stand behind the
mean that was subtracted, and a mean of few lies closer to each of them. ``k_t`` is 1 where all rollouts do.

Invariants. With one value a rollout ``s`` is the sample standard deviation of the values, to the last digit.
And since every single residual is part of ``s``, none is larger than ``s · sqrt(n · calls of a rollout)``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

ROUNDING = 1e-12
"""Share of the largest value below which a difference is rounding: means of equal credits may differ in the
last bit."""


Residual = tuple[float, int]
"""A credit minus the mean that it is compared with, and the number of rollouts in that mean."""


def mean(values: Sequence[float]) -> float:
    """Return the mean, within the bounds of the values: the mean of equal values is exactly that value."""
    try:
        centre = math.fsum(values) / len(values)
    except OverflowError:  # of the sum; the mean itself lies between its values
        centre = math.fsum(value / len(values) for value in values)
    return min(max(centre, min(values)), max(values))


def std(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    centre = mean(values)
    # hypot scales before it squares, so that a huge reward is a huge deviation and no overflow
    return math.hypot(*(value - centre for value in values)) / math.sqrt(len(values) - 1)


def pooled_std(residuals: Mapping[str, Sequence[Residual]]) -> float:
    """Return the spread of a group; 0 for fewer than two rollouts. ``residuals``: rollout → its residuals,
    without those of locations that no other rollout has.
    """
    n = len(residuals)
    if n < 2:
        return 0.0
    return math.hypot(*(_root_mean_square(of, n) for of in residuals.values())) / math.sqrt(n - 1)


def nearly_equal(values: Collection[float]) -> bool:
    """Whether values are the same up to rounding."""
    return max(values) - min(values) <= ROUNDING * max(map(abs, values))


def _root_mean_square(residuals: Sequence[Residual], n: int) -> float:
    """Root of the mean square of one rollout's residuals, within their own bounds: equal residuals have
    exactly that size.
    """
    sizes = [abs(value) * math.sqrt((m * (n - 1)) / ((m - 1) * n)) for value, m in residuals]
    root = math.hypot(*sizes) / math.sqrt(len(sizes))
    return min(max(root, min(sizes)), max(sizes))
