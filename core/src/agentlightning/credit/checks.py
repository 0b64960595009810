"""Which recipes credit can carry out: the values of each field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from agentlightning.credit.baselines import BASELINES, Baseline
from agentlightning.credit.rules import RULES, CreditRule
from agentlightning.types import Correction, LossAggregation, Recipe


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
