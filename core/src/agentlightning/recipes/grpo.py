"""GRPO: Group Relative Policy Optimization. DeepSeekMath, https://arxiv.org/abs/2402.03300 (section 4.1).

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
    J   = 1/G sum_i 1/|o_i| sum_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i)
    rho_t = pi(o_t) / pi_old(o_t)

Here ``o_i`` is everything the policy wrote in rollout i, over all its calls, so a rollout with many calls
weighs as much as one with few. ``std`` is the sample standard deviation (the paper does not say; see
``credit.baselines``).

**No KL term by default.** The paper has ``beta = 0.04``; it needs a reference policy in memory, and with
small learning rates on verifiable rewards it is commonly left out. ``GRPO(kl=0.04)`` puts it back.

**Values.** The paper (section 4.2) samples 64 rollouts a task and makes one update a batch; groups of 8 are
our choice, for less money. ``eps = 0.2`` is PPO's.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def GRPO(**overrides: Any) -> Recipe:
    """Return GRPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``GRPO(group_size=16)``."""
    return make(
        overrides,
        name="grpo",
        group_size=8,
        credit="broadcast",
        baseline="group",
        group_by=["group"],
        scale="std",
        loss_aggregation="rollout",
        loss="clip",
        clip_low=0.2,
        clip_high=0.2,
        kl=0.0,
    )
