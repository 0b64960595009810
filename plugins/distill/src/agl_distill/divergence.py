"""Divergences between teacher and policy as one number for each sampled token.

For a convex f with f(1) = 0, ``D_f(P || Q) = sum_v Q(v) f(P(v) / Q(v))``, with P the teacher's distribution
of the next token and Q the policy's, both at the temperature of the row. With ``r = P/Q`` its gradient is

    grad D_f = sum_v grad Q(v) (f(r) - r f'(r)) = - E_{v ~ Q}[ A(r) grad log Q(v) ],   A(r) = r f'(r) - f(r)

so the sampled token alone gives an unbiased estimate, by the advantage ``A(r)``: that is what a row can hold,
and what every driver trains. With ``d = log P(v) - log Q(v)`` of the sampled token:

===========  ==================================  =====================================  ====================
``reverse``  KL(Q || P)                          f = -log r                             A = d
``forward``  KL(P || Q)                          f = r log r                            A = exp(d) - 1
``jsd``      beta KL(P || M) + (1-beta) KL(Q || M),  f = beta r log(r/s) - (1-beta) log s   A = (1-beta) log s
             M = beta P + (1-beta) Q             with s = beta r + 1 - beta
===========  ==================================  =====================================  ====================

(Agarwal et al., GKD, arXiv 2306.13649, equation 1 for ``jsd``.) Constants are dropped from ``reverse`` and
``forward``, since the mean of grad log Q is 0: then A is 0 where both agree. ``reverse`` and ``jsd`` grow
like ``d``; ``forward`` grows like ``exp(d)``, so its estimates vary more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

Divergence = Literal["reverse", "forward", "jsd"]
DIVERGENCES: tuple[str, ...] = get_args(Divergence)
LARGEST = 60.0
"""The largest ``d`` whose exponential is taken: e^60 is beyond what any step can use, and finite."""


def advantages(
    teacher: Iterable[float], policy: Iterable[float], divergence: str, beta: float = 0.5
) -> list[float]:
    """Return the advantage of each token from its two logprobs (nats). ``beta``: of ``jsd``, in (0, 1)."""
    differences = (theirs - own for theirs, own in zip(teacher, policy, strict=True))
    if divergence == "reverse":
        return list(differences)
    grown = (math.expm1(min(d, LARGEST)) for d in differences)
    if divergence == "forward":
        return list(grown)
    if divergence == "jsd":
        return [(1.0 - beta) * math.log1p(beta * x) for x in grown]
    raise ValueError(f"no divergence {divergence!r}; known: {', '.join(DIVERGENCES)}")
