"""Advantages for pass@k: verl's estimator ``grpo_passk``, as a baseline and a recipe of every driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlightning.recipes import make
from agentlightning.types import Recipe


def passk(
    groups: Mapping[tuple[str, ...], Mapping[str, float]], recipe: Recipe
) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the second best value for the best rollout of a group, and for the others their own value: only
    the best has an advantage, by as much as it is better than the second. That is what it adds to the group's
    best (https://arxiv.org/abs/2503.19595). Two that are equally the best have none.
    """
    out = {}
    for key, values in groups.items():
        *_, second, best = [0.0, *sorted(values.values())]
        out[key] = {rollout: second if value == best else value for rollout, value in values.items()}
    return out


def GRPOPassK(**overrides: Any) -> Recipe:
    """GRPO for pass@k: at least one of the k rollouts of a task shall succeed.

        A_best = (r_best - r_second) / (std(r) + 1e-6),  A_i = 0 for the others      over G rollouts of a task

    All else is GRPO's. Groups without a single best rollout teach nothing.
    """
    return make(overrides, name="grpo_passk", baseline="passk", scale="std")
