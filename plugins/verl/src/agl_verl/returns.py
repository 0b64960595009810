"""Recipes with a critic: what they may say, and credit's returns as rewards in time, which GAE reads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from agentlightning.types import Recipe, Row

_COMPARED = "there is no comparison within a group: the critic estimates the expected return"
CRITIC_REQUIRES: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "baseline": ("none", _COMPARED),
        "group_by": (["group"], _COMPARED),
        "scale": (
            "none",
            "advantages are whitened over the step's trained tokens, not scaled by a group's spread",
        ),
        "filter_zero_std_groups": (False, "with a critic, a group of equal returns still has advantages"),
        "step_weight": (0.0, _COMPARED),
        "ratio_level": ("token", "each token has its own advantage; a sequence has none"),
    }
)
"""Recipe fields that have no meaning, or another one, with a critic → their required value, and the
reason.
"""
DISCOUNTED_ONCE = "time is discounted once, by GAE, per token"
"""Why the rule ``discounted`` is refused with a critic."""


def check_critic(recipe: Recipe) -> None:
    """Raise ``ValueError`` that names the field, if a field of the recipe contradicts its critic, or lacks
    one.
    """
    if not 0.0 <= recipe.lam <= 1.0:
        raise ValueError(f"recipe.lam = {recipe.lam}: must lie in [0, 1]")
    if not recipe.critic:
        if recipe.lam != 1.0:
            raise ValueError(
                f"recipe.lam = {recipe.lam}: only GAE uses it, which needs a critic; set critic=True"
            )
        return
    for field, (wanted, why) in CRITIC_REQUIRES.items():
        if (value := getattr(recipe, field)) != wanted:
            raise ValueError(
                f"recipe.{field} = {value!r} with a critic: {why}; set it to {wanted!r}, as PPO() does"
            )
    if recipe.credit == "discounted":
        raise ValueError(
            f"recipe.credit = 'discounted' with a critic: {DISCOUNTED_ONCE}; write credit: returns, as PPO() "
            "does"
        )


def token_rewards(row: Row) -> list[float]:
    """Return the reward of every token of a row whose advantages come from a critic: 0 except at the last
    token of a trained call.

    Generalised advantage estimation (GAE, arXiv 1506.02438) reads rewards along each row; credit gives one
    number per call. With a critic that number is the call's *return*, as its rule computes it, no baseline is
    subtracted and nothing is scaled. The rewards are the differences:

        reward at the last token of call i  =  return(i) − return(next call of the row)
        reward at the last token of the row =  return(its last call)

    Invariant: from any trained token on, the rewards of its row sum to the return of the token's call, in
    whichever rows the forest put the rollout's calls. With the rule ``returns`` these are the rewards that
    the calls emitted, at their ends, and the rollout's reward at the end of its last call; a row that ends
    before the rollout also gets all later rewards at its end.
    """
    found = [0.0] * len(row.token_ids)
    trained = sorted((segment for segment in row.segments if segment.trained), key=lambda one: one.start)
    for one, following in pairwise(trained):
        found[one.end - 1] = one.advantage - following.advantage
    for last in trained[-1:]:
        found[last.end - 1] = last.advantage
    return found
