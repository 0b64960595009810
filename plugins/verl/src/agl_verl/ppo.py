"""PPO: a recipe whose advantages are a critic's, and the credit rule that makes the returns it learns."""

from __future__ import annotations

from typing import Any

import msgspec

from agentlightning.credit.rules import Credits, discounted
from agentlightning.recipes import make
from agentlightning.types import Recipe, Record


def returns(record: Record, recipe: Recipe) -> Credits:
    """Rewards to go, as the rule ``discounted`` makes them, and with a critic undiscounted: time is
    discounted once, by GAE.
    """
    return discounted(record, msgspec.structs.replace(recipe, gamma=1.0) if recipe.critic else recipe)


def PPO(**overrides: Any) -> Recipe:
    """PPO: Proximal Policy Optimization, with a critic. Schulman et al., https://arxiv.org/abs/1707.06347;
    advantages by GAE, https://arxiv.org/abs/1506.02438 (equation 16).

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma lam A_{t+1}                        then whitened over the tokens of the step
        J       = mean over tokens of min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t)

    A state is what the policy had read before token t, a step is one token, and ``V`` is a model of its own,
    made from the policy's weights with a value head, which learns the lambda-returns ``A_t + V(s_t)``
    (unwhitened). ``loss_aggregation="token"`` is the paper's mean over timesteps. There are no groups: one
    rollout per task.

    **What an episode is.** GAE runs along a *row*. Tokens that the policy did not write (a tool's answer, the
    user's next turn) are skipped: from the last token of one call time goes on at the first token of the
    next, so what they brought is in the next value. Where a row ends, the value behind it is 0. A call's
    reward is paid at its last token, the rollout's at the last token of its last call (rule ``returns``). If
    the rollout's calls are in several rows (other agents, branches, a template that rewrites earlier turns),
    each row's end is also paid what came after it in the others, undiscounted. So with ``gamma=lam=1`` every
    token sees the same return in whichever row it stands.

    **Merged and unmerged rows are not the same training here.** The lambda-returns of a row reach across its
    calls, where rows of single calls each end at value 0; no equality is claimed for ``merge``, as it is for
    recipes whose advantages come from credit.

    Needs a driver with a value model: ``verl``.
    """
    return make(
        {"group_by": ["group"], **overrides},  # whatever the rule, there is nothing to compare by turns
        name="ppo",
        group_size=1,
        credit="returns",
        lam=0.95,
        baseline="none",
        loss_aggregation="token",
        critic=True,
    )
