"""Flow-GRPO: GRPO for agents of many turns. AgentFlow, https://arxiv.org/abs/2510.05592 (section 3.2).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                            over the G rollouts of one task
    J   = 1/G sum_i 1/T_i sum_t 1/|a_it| sum_j min(rho_ij A_i, clip(rho_ij, 1 - eps, 1 + eps) A_i)

The outcome ``R_i`` of a rollout is broadcast to each of its ``T_i`` turns (calls), so that a task of many
turns becomes one-turn updates with the same credit. Turns of a rollout weigh the same, however long they are:
GRPO gives a long answer more of its rollout's share. The paper adds a KL term; ``FlowGRPO(kl=0.001)`` puts it
back.

**Values.** Groups of 8 and a KL coefficient of 0.001 are those of the authors' released configuration, which
clips at 0.3 above: ``FlowGRPO(clip_high=0.3)``. The same range on both sides is our choice.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def FlowGRPO(**overrides: Any) -> Recipe:
    """Return Flow-GRPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``FlowGRPO(group_size=4)``.
    """
    return make(
        overrides,
        name="flow_grpo",
        group_size=8,
        credit="broadcast",
        baseline="group",
        scale="std",
        loss_aggregation="nested",
        clip_low=0.2,
        clip_high=0.2,
    )
