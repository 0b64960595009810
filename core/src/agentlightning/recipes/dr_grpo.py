"""Dr. GRPO: GRPO Done Right. Liu et al., https://arxiv.org/abs/2503.20783 (section 3.2).

    A_i = r_i - mean(r)                                                over the G rollouts of one task
    J   = 1/G sum_i 1/L sum_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i)

Two divisions of GRPO are gone: by the group's standard deviation, which gives tasks that are nearly always or
nearly never solved more weight, and by a rollout's own length, which punishes a long wrong answer less than a
short one. ``L`` is a constant, the budget of generated tokens of a rollout: ``loss_divisor``. It scales the
loss and nothing else, so with AdamW it hardly matters; a run that clips gradients by their norm sets it near
the length of its rollouts.

**Values.** Groups of 8, one epoch and no KL term are those of the authors' program, whose budget is 3,000
tokens: ``DrGRPO(loss_divisor=3000)``. The default of 1,024 is our choice.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def DrGRPO(**overrides: Any) -> Recipe:
    """Return Dr. GRPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``DrGRPO(loss_divisor=256)``.
    """
    return make(
        overrides,
        name="dr_grpo",
        group_size=8,
        baseline="group",
        scale="none",
        loss_aggregation="constant",
        loss_divisor=1024.0,
        clip_low=0.2,
        clip_high=0.2,
    )
