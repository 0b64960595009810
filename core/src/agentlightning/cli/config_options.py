"""What ``train`` and ``eval`` share: from a configuration to a trainer, and the last line, for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentlightning.algorithms.recipe_checks import check_async_fields
from agentlightning.algorithms.rollouts.quorum import read_quorum
from agentlightning.decorator.agents import AgentError, LitAgent, as_agent
from agentlightning.plugins.manager import load as load_plugins, pick
from agentlightning.train.run_config import (
    ConfigError,
    RunConfig,
    import_target,
    load_config,
    load_data,
    policy_sources,
    read_yaml,
)
from agentlightning.train.trainer import Trainer
from agentlightning.types import Recipe
from agentlightning.types.failure import read_failure_table


def read(config: Path, sets: list[str] | None, **direct: Any) -> RunConfig:
    """The configuration with ``--set key=value`` and the direct options applied (YAML values)."""
    import yaml

    overrides: dict[str, Any] = {}
    for item in sets or []:
        key, sep, value = item.partition("=")
        if not sep:
            raise ConfigError(f"--set {item!r}: write key=value, e.g. --set training.steps=10")
        try:
            overrides[key] = read_yaml(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {item!r}: the value is not valid YAML: {error}") from None
    overrides.update({key.replace("__", "."): value for key, value in direct.items() if value is not None})
    return load_config(config, overrides)


def trainer_from(
    config: RunConfig, *, run: str | None = None, resume: bool = False
) -> tuple[Trainer, LitAgent[Any], list[Any], list[Any]]:
    """Trainer, agent, training tasks and held-out tasks of a configuration."""
    plugins = load_plugins()
    try:
        agent = as_agent(import_target(config.agent.target, "agent.target"))
    except AgentError as error:
        raise ConfigError(f"agent.target: {error}") from None
    training, environment = config.training, config.environment
    try:
        recipe: Recipe = pick(plugins.recipes, "recipe", training.algorithm).factory(**training.recipe)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"training.recipe: {error}") from None
    _check(config, recipe)
    trainer = Trainer(
        recipe,
        policy=policy_sources(config),
        policies=config.agent.policies,
        driver=config.backend.driver,
        options=config.backend.options,
        steps=training.steps,
        batch_size=training.batch_size,
        n_runners=config.agent.concurrency,
        isolation=config.agent.isolation,
        timeout=config.agent.timeout_seconds,
        unresponsive=config.agent.unresponsive_seconds,
        max_attempts=config.agent.max_attempts,
        emitted_overrides_returned=config.agent.emitted_overrides_returned,
        select=config.agent.select,
        gateway=config.backend.model_dump(include={"over_length", "reserve", "max_len", "reasoning"}),
        listen=config.gateway.listen,
        advertise=config.gateway.advertise,
        adapters=[config.agent.type] if config.agent.type else [],
        headroom={
            name: import_target(target, f"environment.headroom.{name}")
            for name, target in environment.headroom.items()
        },
        headroom_tasks=environment.headroom_tasks,
        evaluate_every=training.evaluate_every,
        failure=training.failure,
        quorum=training.quorum,
        async_steps=training.async_steps,
        dynamic_sampling=training.dynamic_sampling,
        seed=training.seed,
        folder=config.path(config.output),
        run=run,
        resume=resume,
        store=config.store_location(),
        trackers=config.trackers,
        plugins=plugins,
        name=config.agent.name,
        note=config.note,
    )
    train = load_data(environment.train, config, "environment.train")
    val = load_data(environment.val, config, "environment.val")
    return trainer, agent, train, val


def _check(config: RunConfig, recipe: Recipe) -> None:
    """What would otherwise be found out only after the policy was loaded and evaluated."""
    training = config.training
    if training.steps and config.environment.train is None:
        raise ConfigError(
            f"environment.train: training.steps is {training.steps}, and there are no tasks to train on; "
            "give file or target, or set training.steps to 0"
        )
    try:
        read_failure_table(training.failure)
        read_quorum(training.quorum)
        check_async_fields(
            recipe, async_steps=training.async_steps, dynamic_sampling=training.dynamic_sampling
        )
    except ValueError as error:
        raise ConfigError(f"training.{error}") from None


def last_line(result: dict[str, Any]) -> None:
    """Print the result as one JSON object, alone on the last line of stdout."""
    print(json.dumps(result), flush=True)
