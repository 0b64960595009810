"""CISPO: Clipped Importance Sampling Policy Optimization. MiniMax-M1, https://arxiv.org/abs/2506.13585
(section 3.1, equations 4 and 5).

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
    J   = 1/sum_i |o_i| sum_i sum_t sg(min(rho_t, 1 + eps)) A_i log pi(o_t)        sg: no gradient

The clip bounds how much a token weighs and never removes its gradient, where PPO's clip drops a token whose
probability has moved too far, often the rare word that a new line of thought begins with. There is no lower
bound (``clip_low=1``), as in the paper, which tunes ``eps`` and does not say its value; 0.28 is DAPO's.
With one optimizer step a batch, every ratio is 1 and the gradient is GRPO's over all tokens.

**Values.** The paper makes 16 rounds of updates from a batch; 4 are our choice, for smaller batches. It has
no KL term either, and takes dynamic sampling and the length penalty from DAPO, which are settings of a run
and of a reward.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def CISPO(**overrides: Any) -> Recipe:
    """Return CISPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``CISPO(clip_high=4.0)``.
    """
    return make(
        overrides,
        name="cispo",
        group_size=8,
        baseline="group",
        scale="std",
        loss_aggregation="token",
        loss="cispo",
        clip_low=1.0,
        clip_high=0.28,
        minibatches=4,
    )
