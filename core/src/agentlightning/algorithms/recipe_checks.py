"""Refuse a recipe that a run would not carry out as written, before any rollout.

Invariant: no field of a recipe is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agentlightning.algorithms.rollouts.quorum import group_size_needed
from agentlightning.credit.checks import check_recipe
from agentlightning.credit.rules import RULES
from agentlightning.plugins.manager import Plugins
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection

CORE_FIELDS = frozenset(
    {
        "group_size", "credit", "gamma", "step_weight", "baseline", "group_by", "scale",
        "loss_aggregation", "loss_divisor",
        "filter_zero_std_groups", "merge", "max_staleness", "temperature",
    }
)  # fmt: skip
"""Recipe fields that core implements for every driver: they decide what the rows hold."""
SCHEDULE = ("quorum", "async_steps", "order", "dynamic_sampling", "curriculum")
"""Settings of ``training`` that decide which rollouts a step has; only training with a recipe knows them."""
ON_BY_DEFAULT = ("off_policy_cap", "correction")
"""Fields that are on by default, for drivers that implement them; ``None`` switches them off."""


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


def check_ends_early(training: TrainingSection, driver: str, ends_early: bool) -> None:
    """Raise if ``training`` ends early or keeps the best policy, and the driver can do neither."""
    settings = {"early_stopping": training.early_stopping, "keep_best": training.keep_best}
    asked = [name for name, value in settings.items() if value]
    if asked and not ends_early:
        raise ConfigError(
            f"driver {driver!r} cannot carry out training.{asked[0]}: it neither ends at another step than "
            "its last nor exports a policy between two checkpoints; use the driver 'local', or drop it and "
            "choose a checkpoint with `agl export --step`"
        )


def without_unsupported_default(recipe: Recipe, supported: frozenset[str]) -> Recipe:
    """Return ``recipe`` as a driver can carry it out that does not know the fields that are on by default.
    Without ``off_policy_cap``, credit leaves out the calls that only importance weights would make trainable.
    """
    used = recipe.uses()
    off = {name: None for name in ON_BY_DEFAULT if name not in supported and name not in used}
    return msgspec.structs.replace(recipe, **off) if off else recipe


def check_credit_fields(recipe: Recipe, plugins: Plugins) -> None:
    """Raise if credit cannot work with a value of ``recipe``, reads it nowhere, or has nothing to compare."""
    try:
        check_recipe(recipe, **plugins.credit_functions)
    except ValueError as error:
        raise ConfigError(str(error)) from None
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


def check_schedule(recipe: Recipe, training: TrainingSection) -> None:
    """Raise if ``quorum``, ``async_steps``, ``order`` or ``dynamic_sampling`` do not work with ``recipe``."""
    if training.early_stopping is not None and not training.evaluate_every:
        raise ConfigError(
            "training.early_stopping without training.evaluate_every: nothing is evaluated while it trains; "
            "set training.evaluate_every, e.g. to 5"
        )
    async_steps, dynamic_sampling = training.async_steps, training.dynamic_sampling
    if training.quorum is not None:
        group_size_needed(training.quorum, recipe.group_size + training.quorum.hedge)
    if recipe.max_staleness < async_steps:
        raise ConfigError(
            f"training.async_steps = {async_steps} with recipe.max_staleness = {recipe.max_staleness}: calls "
            f"made that early are up to {async_steps} versions old when they are trained, and the recipe "
            f"leaves them out; set recipe.max_staleness to {async_steps} or more, best with "
            "recipe.importance_cap (say 2.0), which corrects for their age"
        )
    if training.order == "finished" and not async_steps:
        raise ConfigError(
            "training.order = 'finished' without training.async_steps: then as many groups are in flight as "
            "a step trains, and it waits for all of them; set training.async_steps to 1 or more"
        )
    if training.order == "finished" and training.quorum is not None:
        raise ConfigError(
            "training.order = 'finished' with training.quorum: a step already goes on without slow groups; "
            "drop quorum"
        )
    if dynamic_sampling and not recipe.filter_zero_std_groups:
        raise ConfigError(
            f"training.dynamic_sampling = {dynamic_sampling} without recipe.filter_zero_std_groups: groups "
            "without a spread are then part of the step, and nothing replaces them; set "
            "recipe.filter_zero_std_groups to true"
        )
    if dynamic_sampling and recipe.baseline == "none" and recipe.scale == "none":
        raise ConfigError(
            f"training.dynamic_sampling = {dynamic_sampling} with recipe.baseline = 'none': nothing is "
            "compared, so no group is without a spread and none is replaced; drop dynamic_sampling, or use "
            "a baseline"
        )
