"""GSPO: Group Sequence Policy Optimization. Zheng et al., https://arxiv.org/abs/2507.18071 (section 4.1).

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
    s_i = (pi(y_i | x) / pi_old(y_i | x)) ** (1 / |y_i|)               one ratio for a sequence
    J   = 1/G sum_i min(s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i)

A sequence is what the policy wrote in one call, so an agent's rollout has a ratio for each of its calls, and
weighs as much as any other rollout. The clip ranges are the paper's; they are narrow because a mean over
tokens varies little. With one optimizer step a batch, every ratio is 1 and the gradient is
GRPO's.

**Values.** Clip ranges and four optimizer steps a batch are the paper's (section 5.1). Groups of 8 are our
choice.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def GSPO(**overrides: Any) -> Recipe:
    """Return GSPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``GSPO(clip_high=1e-3)``.
    """
    return make(
        overrides,
        name="gspo",
        group_size=8,
        baseline="group",
        scale="std",
        loss_aggregation="rollout",
        ratio_level="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        minibatches=4,
    )
