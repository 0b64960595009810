"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization. Yu et al., https://arxiv.org/abs/2503.14476
(equation 8).

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
    J   = 1/sum_i |o_i| sum_i sum_t min(rho_t A_i, clip(rho_t, 1 - eps_low, 1 + eps_high) A_i)
    with 0 < #correct < G                                              in every group of the batch

The upper clip is wider than the lower one, so that rare tokens can become likely; every token of the batch
weighs the same; groups whose rollouts all earned the same take no part. To replace such groups by others, as
the paper does, set ``training.dynamic_sampling``. The paper's penalty for over-long answers is part of its
reward.

**Values.** Group size, clip ranges and the missing KL term are the paper's (sections 2.3 and 4.1). It takes
16 optimizer steps from a batch of 512 tasks; one is our choice, for smaller batches
(``DAPO(minibatches=16)``).
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def DAPO(**overrides: Any) -> Recipe:
    """Return DAPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``DAPO(group_size=8)``.
    """
    return make(
        overrides,
        name="dapo",
        group_size=16,
        baseline="group",
        scale="std",
        loss_aggregation="token",
        clip_low=0.2,
        clip_high=0.28,
        filter_zero_std_groups=True,
    )
