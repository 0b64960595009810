"""The algorithm of a run: an object that was given, one by name, or RL with a recipe."""

from __future__ import annotations

from typing import Any

from agentlightning.algorithms.context import TrainingLoop
from agentlightning.algorithms.custom import as_algorithm
from agentlightning.algorithms.recipe_checks import (
    check_credit_fields,
    check_ends_early,
    check_supported_fields,
    without_unsupported_default,
)
from agentlightning.algorithms.schedule import schedule_of
from agentlightning.plugins.manager import Plugins, pick
from agentlightning.train.description.run_config import RunConfig
from agentlightning.train.services.serving import driver_spec
from agentlightning.types import Recipe, UsageError
from agentlightning.types.base import ConfigError


def recipe_of(config: RunConfig, plugins: Plugins) -> Recipe:
    """Return the recipe that is trained with; an algorithm with a loop of its own has the default one."""
    recipe, driver = _recipe_of(config, plugins), plugins.drivers.get(config.backend.driver)
    return recipe if driver is None else without_unsupported_default(recipe, driver.supported_fields)


def _recipe_of(config: RunConfig, plugins: Plugins) -> Recipe:
    given = config.training.algorithm
    if isinstance(given, Recipe):
        return given
    own = plugins.algorithms.get(given) if isinstance(given, str) else None
    name = given if isinstance(given, str) and own is None else "grpo"
    try:
        if own is not None and own.recipe is not None:
            return own.recipe(**config.training.recipe)
        return pick(plugins.recipes, "recipe", name).factory(**config.training.recipe)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"training.recipe: {error}") from None


def algorithm_of(config: RunConfig, plugins: Plugins, trainer: Any) -> TrainingLoop:
    """Return the object whose ``run(context)`` is the run. A user's algorithm may ask for ``trainer``."""
    training, algorithm = config.training, config.training.algorithm
    named = isinstance(algorithm, str) and algorithm in {*plugins.recipes, "rl"}
    if named or isinstance(algorithm, Recipe):
        if training.settings:
            raise ConfigError("training.settings: a recipe has none; its fields stand in training.recipe")
        return _rl(config, plugins)
    own = plugins.algorithms.get(algorithm) if isinstance(algorithm, str) else None
    if own is not None and own.recipe is not None:
        return _rl(config, plugins, own.name)
    recipe = recipe_of(config, plugins)
    by = ["async_steps"] if training.async_steps else schedule_of(plugins, recipe, training).chooses_by
    if by:
        raise UsageError(
            f"training.{by[0]}: only training with a recipe knows it; an algorithm of your own queues its "
            "rollouts itself: drop it"
        )
    if config.evaluation.sets:
        raise UsageError(
            "evaluation.sets: only training with a recipe evaluates on them; an algorithm of your own makes "
            "its evaluations itself: drop them, and score its policy with `agl eval --on`"
        )
    if isinstance(algorithm, str):
        known: dict[str, Any] = {**plugins.recipes, **plugins.algorithms}
        spec = pick(known, "recipe or algorithm", algorithm)
        try:
            algorithm = spec.factory(**training.settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"training.settings: {error}") from None
    elif training.settings:
        raise ConfigError(
            "training.settings: they are for an algorithm by name; give the object its settings itself"
        )
    made: TrainingLoop = as_algorithm(algorithm, trainer)
    return made


def _rl(config: RunConfig, plugins: Plugins, name: str = "rl") -> TrainingLoop:
    recipe, policies = recipe_of(config, plugins), config.served
    if policies.named and not policies.trained:
        raise UsageError(f"policy: nothing is trained: {', '.join(policies.names)} are frozen")
    spec = driver_spec(plugins, config.backend.driver, policies)
    check_supported_fields(recipe, spec.name, spec.supported_fields, spec.unsupported_fields)
    limited = config.budget is not None and config.budget.limits.limited
    schedule = schedule_of(plugins, recipe, config.training)
    check_ends_early(schedule, spec.name, spec.ends_early, budget=limited)
    check_credit_fields(recipe, plugins)
    made: TrainingLoop = plugins.algorithms[name].factory(
        recipe=recipe, training=config.training, environment=config.environment
    )
    return made
