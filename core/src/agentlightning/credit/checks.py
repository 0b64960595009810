"""Which recipes credit can carry out: the values of each field, alone and beside a critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from agentlightning.credit.baselines import BASELINES, Baseline
from agentlightning.credit.rules import RULES, CreditRule
from agentlightning.types import Correction, LossAggregation, Recipe

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


def check_recipe(
    recipe: Recipe,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
) -> None:
    """Raise ``ValueError`` that names the field, for values that credit cannot work with. ``rules`` and
    ``baselines``: as for :func:`assign`.
    """
    r, aggregations = recipe, get_args(LossAggregation)
    for field, kind, known in (
        ("credit", "rule", {**RULES, **(rules or {})}),
        ("baseline", "baseline", {**BASELINES, **(baselines or {})}),
    ):
        if (name := getattr(recipe, field)) not in known:
            raise ValueError(f"recipe.{field}: no {kind} {name!r}; known: {', '.join(sorted(known))}")
    checks = (
        (r.group_size >= 1, f"group_size = {r.group_size}: a task needs at least one rollout"),
        (
            r.loss_aggregation in aggregations,
            f"loss_aggregation = {r.loss_aggregation!r}; use {', '.join(aggregations)}",
        ),
        (r.scale in ("std", "none"), f"scale: {r.scale!r}; use std or none"),
        (
            0 < r.loss_divisor < math.inf,
            f"loss_divisor = {r.loss_divisor}: a divisor, must be finite and > 0",
        ),
        (0.0 <= r.gamma <= 1.0, f"gamma = {r.gamma}: must lie in [0, 1]"),
        (0.0 <= r.step_weight < math.inf, f"step_weight = {r.step_weight}: must be finite, and not negative"),
        (r.max_staleness >= 0, f"max_staleness = {r.max_staleness}: must be 0 or more versions"),
        (
            0 < r.temperature < math.inf,
            f"temperature = {r.temperature}: training needs a temperature above 0",
        ),
        (
            r.off_policy_cap is None or 0 < r.off_policy_cap < math.inf,
            f"off_policy_cap = {r.off_policy_cap}: the largest importance weight must be finite and above 0; "
            "null leaves out calls that were sampled otherwise than the policy",
        ),
        *_correction_checks(r.correction),
    )
    for holds, problem in checks:
        if not holds:
            raise ValueError(f"recipe.{problem}")
    check_critic(recipe)


def _correction_checks(rule: Correction | None) -> tuple[tuple[bool, str], ...]:
    """Return what a recipe's ``correction`` must fulfil, each with the error."""
    if rule is None:
        return ()
    floor = rule.floor if rule.kind == "mask" and rule.floor is not None else 1.0 / max(rule.cap, 1.0)
    return (
        (0 < rule.cap < math.inf, f"correction.cap = {rule.cap}: must be finite and above 0"),
        (
            rule.floor is None or rule.kind == "mask",
            f"correction.floor = {rule.floor}: 'truncate' has no lower bound; say kind: mask, or drop it",
        ),
        (0 < floor <= rule.cap, f"correction.floor = {rule.floor}: must be above 0, and at most cap"),
        (
            0 <= rule.threshold < math.inf,
            f"correction.threshold = {rule.threshold}: must be finite, and not negative; `correction: null` "
            "switches the correction off",
        ),
    )


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
