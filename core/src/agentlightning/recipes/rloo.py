"""RLOO: REINFORCE Leave-One-Out. Ahmadian et al., https://arxiv.org/abs/2402.14740 (section 2.3).

    A_i = r_i - 1/(k - 1) sum_{j != i} r_j                             over the k rollouts of one task
    J   = 1/k sum_i A_i log pi(o_i)                                    log pi(o_i): sum over all its tokens

The whole sequence is one action: token log-probabilities are *summed*, not averaged, hence
``loss_aggregation="constant"`` with ``loss_divisor=1`` (weight 1 / rollouts for every token). Advantages are
not scaled.

The loss is ``clip`` at ratio 1, which *is* REINFORCE: with one optimizer step per batch of fresh samples
(``epochs=1, minibatches=1, max_staleness=0``) the gradient of ``rho * A`` at ``rho = 1`` is ``A * grad log
pi``, and the clip never acts. With several steps a batch it becomes clipped RLOO. No KL term by default; the
paper adds it to the reward.

**Values.** The paper compares ``k = 2`` and ``k = 4``, with a KL coefficient of 0.03 (appendix C); groups of
8 are our choice, so that recipes are alike.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def RLOO(**overrides: Any) -> Recipe:
    """Return RLOO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``RLOO(group_size=4)``."""
    return make(
        overrides,
        name="rloo",
        group_size=8,
        credit="broadcast",
        baseline="rloo",
        group_by=["group"],
        scale="none",
        loss_aggregation="constant",
        loss_divisor=1.0,
        loss="clip",
        clip_low=0.2,
        clip_high=0.2,
        kl=0.0,
        epochs=1,
        minibatches=1,
        max_staleness=0,
    )
