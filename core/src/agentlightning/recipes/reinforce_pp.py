"""REINFORCE++: REINFORCE with a baseline and a scale of the whole batch. Hu et al.,
https://arxiv.org/abs/2501.03262 (section 3).

    A_i = (r_i - mean_batch(r)) / (std_batch(r) + 1e-6)                over all rollouts of the step
    J   = 1/sum_i |o_i| sum_i sum_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i)

No groups: one rollout a task, and tasks are compared with each other. Mean and deviation are over rollouts,
each of which counts once; the paper normalises over tokens, where a long rollout counts more. The paper
subtracts a KL penalty from the reward; ``REINFORCEPlusPlus(kl=…)`` has it in the loss.

**Values.** One rollout a task is the paper's first variant. Its second, "with baseline", subtracts the mean
of a group and divides by the deviation of the batch, which is no recipe here. ``eps = 0.2`` is PPO's.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def REINFORCEPlusPlus(**overrides: Any) -> Recipe:
    """Return REINFORCE++ with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``REINFORCEPlusPlus(group_size=4)``.
    """
    return make(
        overrides,
        name="reinforce++",
        group_size=1,
        baseline="batch",
        group_by=["batch"],
        scale="std",
        loss_aggregation="token",
        clip_low=0.2,
        clip_high=0.2,
    )
