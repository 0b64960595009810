"""GiGPO: Group-in-Group Policy Optimization. Feng et al., https://arxiv.org/abs/2505.10978 (section 4).

    A^E_i  = (R_i - mean(R)) / (std(R) + 1e-6)                    over the G rollouts of one task
    G_it   = r_it + gamma G_i(t+1)                                     return from turn t on
    A^S_it = (G_it - mean(G)) / (std(G) + 1e-6)               over calls of the group in one state
    A_it   = A^E_i + omega A^S_it

Rollouts of one task pass through the same states: the first call always, later ones where a board, a page or
a file is the same again. Calls made in one state are compared by what followed, which tells good turns from
bad ones without another rollout. ``omega`` is ``step_weight``. A state is the call's tag ``state`` if it has
one, else its prompt: an agent whose prompts hold their whole history names its states, ``with
agl.tagged(state=board)``. A state that only one call of the group was in gives no comparison, and its ``A^S``
is 0.

**Values.** ``gamma = 0.95``, ``omega = 1`` and groups of 8 are those of ROLL's implementation. The paper also
divides by 1 instead of the deviation, for hard tasks: ``GiGPO(scale="none")``.
"""

from __future__ import annotations

from typing import Any

from agentlightning.recipes.make import make
from agentlightning.types import Recipe


def GiGPO(**overrides: Any) -> Recipe:
    """Return GiGPO with any field of :class:`~agentlightning.types.Recipe` overridden, e.g.
    ``GiGPO(step_weight=0.5)``.
    """
    return make(
        overrides,
        name="gigpo",
        group_size=8,
        credit="broadcast",
        gamma=0.95,
        step_weight=1.0,
        baseline="group",
        scale="std",
        loss_aggregation="rollout",
        clip_low=0.2,
        clip_high=0.2,
    )
