"""Which recipes can be carried out as written: by credit, and by a driver. The rest is refused before any
rollout.

Invariant: no field of a recipe is ignored in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import get_args

import msgspec

from agentlightning.credit.baselines import BASELINES, Baseline
from agentlightning.credit.rules import RULES, CreditRule
from agentlightning.types import LossAggregation, Recipe
from agentlightning.types.base import ConfigError

CORE_FIELDS = frozenset(
    {
        "group_size", "credit", "gamma", "step_weight", "baseline", "group_by", "scale",
        "loss_aggregation", "loss_divisor",
        "filter_zero_std_groups", "merge", "max_staleness", "temperature",
    }
)  # fmt: skip
"""Recipe fields that core implements for every driver: they decide what the rows hold."""
ON_BY_DEFAULT = ("off_policy_cap", "correction")
"""Fields that are on by default, for drivers that implement them; ``None`` switches them off."""


def check_recipe(
    recipe: Recipe,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
) -> None:
    """Raise :class:`.ConfigError` that names the field, for values that credit cannot work with. ``rules``
    and ``baselines``: as for :func:`assign`.
    """
    for field, kind, known in (
        ("credit", "rule", {**RULES, **(rules or {})}),
        ("baseline", "baseline", {**BASELINES, **(baselines or {})}),
    ):
        if (name := getattr(recipe, field)) not in known:
            raise ConfigError(f"recipe.{field}: no {kind} {name!r}; known: {', '.join(sorted(known))}")
    for field, holds, problem in _bounds(recipe):
        if not holds:
            raise ConfigError(f"recipe.{field} = {attrgetter(field)(recipe)!r}: {problem}")


def _bounds(r: Recipe) -> Iterator[tuple[str, bool, str]]:
    """Yield the fields, each with whether its value is one that credit can work with, and what else is."""
    finite, cap, aggregations = math.inf, r.off_policy_cap, get_args(LossAggregation)
    yield "group_size", r.group_size >= 1, "a task needs at least one rollout"
    yield "loss_aggregation", r.loss_aggregation in aggregations, f"use {', '.join(aggregations)}"
    yield "scale", r.scale in ("std", "none"), "use std or none"
    yield "loss_divisor", 0 < r.loss_divisor < finite, "a divisor, must be finite and > 0"
    yield "gamma", 0.0 <= r.gamma <= 1.0, "must lie in [0, 1]"
    yield "step_weight", 0.0 <= r.step_weight < finite, "must be finite, and not negative"
    yield "max_staleness", r.max_staleness >= 0, "must be 0 or more versions"
    yield "temperature", 0 < r.temperature < finite, "training needs a temperature above 0"
    others = "null leaves out calls that were sampled otherwise than the policy"
    must = f"the largest importance weight must be finite and above 0; {others}"
    yield "off_policy_cap", cap is None or 0 < cap < finite, must
    if (rule := r.correction) is None:
        return
    floor = rule.floor if rule.kind == "mask" and rule.floor is not None else 1.0 / max(rule.cap, 1.0)
    unbounded = rule.floor is None or rule.kind == "mask"
    yield "correction.cap", 0 < rule.cap < finite, "must be finite and above 0"
    yield "correction.floor", unbounded, "'truncate' has no lower bound; say kind: mask, or drop it"
    yield "correction.floor", 0 < floor <= rule.cap, "must be above 0, and at most cap"
    must = "must be finite, and not negative; `correction: null` switches the correction off"
    yield "correction.threshold", 0 <= rule.threshold < finite, must


def check_credit_fields(
    recipe: Recipe,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
) -> None:
    """Raise :class:`.ConfigError` if credit cannot work with a value of ``recipe`` (:func:`check_recipe`),
    reads it nowhere, or has nothing to compare.
    """
    check_recipe(recipe, rules, baselines)
    compares = recipe.baseline in ("group", "rloo") or (recipe.baseline == "none" and recipe.scale == "std")
    if recipe.group_size == 1 and compares and "group" in recipe.group_by:
        what = f"recipe.baseline = {recipe.baseline!r} and recipe.scale = {recipe.scale!r}"
        raise ConfigError(
            f"recipe.group_size = 1 with {what}: a rollout is compared with the others of its group, and "
            "there are none, so nothing would be learned; set recipe.group_size to 4 or more, or compare "
            "within the batch (recipe.baseline: batch), or with nothing (baseline and scale: none)"
        )
    by_rule = recipe.credit == "discounted" or recipe.credit not in RULES  # a plugin's rule may read it
    reads_gamma = by_rule or recipe.step_weight or recipe.critic
    if recipe.gamma != 1.0 and not reads_gamma:
        raise ConfigError(
            f"recipe.gamma = {recipe.gamma:g} with recipe.credit = {recipe.credit!r}: nothing reads it; use "
            "credit: discounted, a step_weight or a critic, or drop gamma"
        )


def check_supported_fields(
    recipe: Recipe, driver: str, supported: frozenset[str], why: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise if ``recipe`` uses a field that the driver does not implement. ``why``: field → reason."""
    # Without off_policy_cap, credit leaves such calls out, whatever the driver.
    used = {k: v for k, v in recipe.uses().items() if k not in ON_BY_DEFAULT or v is not None}
    ignored = {k: v for k, v in used.items() if k in why or k not in supported | CORE_FIELDS}
    if ignored:
        reasons = {k: f" ({why[k]})" if k in why else "" for k in ignored}
        listed = ", ".join(f"{k}={v!r}{reasons[k]}" for k, v in sorted(ignored.items()))
        other = "" if ignored.keys() <= why.keys() else ", or use a driver that implements it"
        raise ConfigError(
            f"driver {driver!r} does not implement {listed} of recipe {recipe.name!r}; drop it{other}"
        )


def without_unsupported_default(recipe: Recipe, supported: frozenset[str]) -> Recipe:
    """Return ``recipe`` as a driver can carry it out that does not know the fields that are on by default.
    Without ``off_policy_cap``, credit leaves out the calls that only importance weights would make trainable.
    """
    used = recipe.uses()
    off = {name: None for name in ON_BY_DEFAULT if name not in supported and name not in used}
    return msgspec.structs.replace(recipe, **off) if off else recipe
