"""The recipe ``distill``: no reward, no group, the teacher's advantages alone."""

from __future__ import annotations

from typing import Any

from agentlightning.recipes import make
from agentlightning.types import Recipe
from agl_distill.names import NAME, RULE


def distill(**overrides: Any) -> Recipe:
    """On-policy distillation (Agarwal et al., GKD, arXiv 2306.13649; Gu et al., MiniLLM, arXiv 2306.08543;
    Thinking Machines, "On-policy distillation", 2025).

        A_t = coefficient * (log p_teacher(t) - log p_policy(t))      of each token that the policy sampled
        J   = 1/T sum_t rho_t A_t                                  over the T trained tokens of the step

    The mean of ``-A_t`` over the policy's samples is the reverse KL divergence to the teacher, and the
    gradient of J is the negative of its gradient, each token by itself. A rollout needs no reward and no
    group. ``divergence`` of the field ``distill`` chooses others (:mod:`.divergence`).
    """
    own: dict[str, Any] = {"credit": RULE, "baseline": "none", "group_size": 1, "loss_aggregation": "token"}
    return make(overrides, name=NAME, **own)
