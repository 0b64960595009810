"""From a description to what runs it: the trainer, the agent and the tasks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentlightning.decorator.agents import AgentError, LitAgent, as_agent
from agentlightning.train.algorithm import check_recipe_fits, recipe_of
from agentlightning.train.fields import ConfigError, from_fields
from agentlightning.train.policies import PolicyFolder, PolicySource
from agentlightning.train.run_config import PolicySection, RunConfig
from agentlightning.train.targets import import_target, load_data
from agentlightning.train.trainer import Trainer
from agentlightning.types import LLM
from agentlightning.types.policy import missing_policy_message


class ConfiguredRun(NamedTuple):
    """A run as it is configured."""

    trainer: Trainer
    agent: Any
    train: Sequence[Any] = ()
    """Tasks to train on."""
    val: Sequence[Any] = ()
    """Held-out tasks."""


def configure(config: RunConfig) -> ConfiguredRun:
    """Import, open and check what the description of a file names. :class:`ConfigError` names the key."""
    agent = load_agent(config)
    trainer = Trainer.from_config(with_objects(config))
    if config.training.steps and config.environment.train is None:
        raise ConfigError(
            f"environment.train: training.steps is {config.training.steps}, and there are no tasks to train "
            "on; give file or target, or set training.steps to 0"
        )
    check_recipe_fits(trainer.config, recipe_of(trainer.config, trainer.plugins))
    train = load_data(config.environment.train, config, "environment.train")
    val = load_data(config.environment.val, config, "environment.val")
    return ConfiguredRun(trainer, agent, train, val)


def load_agent(config: RunConfig) -> LitAgent[Any]:
    """The agent that ``agent.target`` names."""
    if config.agent.target is None:
        raise ConfigError("agent.target: give module:object, the agent to run")
    try:
        return as_agent(import_target(config.agent.target, "agent.target"))
    except AgentError as error:
        raise ConfigError(f"agent.target: {error}") from None


def with_objects(config: RunConfig) -> RunConfig:
    """The description with objects in place of what names them, and paths that no longer need the file."""
    headroom = {
        name: import_target(target, f"environment.headroom.{name}")
        for name, target in config.environment.headroom.items()
    }
    return from_fields(
        {
            "policy": policy_sources(config),
            "headroom": headroom,
            "output": config.path(config.output),
            "store": config.store_location(),
        },
        config,
    )


def policy_sources(config: RunConfig) -> PolicySource | dict[str, PolicySource]:
    """The policies with folders made absolute, and keys of endpoints from the environment."""
    policy = config.backend.policy
    if policy is None:
        raise ConfigError("backend.policy: give the folder of a policy, or several by name")
    if not isinstance(policy, Mapping):
        return _source(config, policy, "backend.policy")
    return {name: _source(config, one, f"backend.policy.{name}") for name, one in policy.items()}


def _source(config: RunConfig, given: PolicySection | PolicySource, key: str) -> PolicySource:
    if isinstance(given, PolicyFolder | LLM):
        return given
    if not isinstance(given, PolicySection):
        return _folder(config, given, key)
    source = given.source()
    if isinstance(source, PolicyFolder):
        folder = _folder(config, source.path, f"{key}.path")
        return dataclasses.replace(source, path=folder)
    variable = given.api_key_env
    secret = os.environ.get(variable) if variable else None
    if variable and not secret:
        raise ConfigError(f"{key}.api_key_env: the environment variable {variable} is not set")
    return msgspec.structs.replace(source, api_key=secret) if isinstance(source, LLM) else source


def _folder(config: RunConfig, given: str | Path, key: str) -> Path:
    folder = config.path(given)
    if not folder.is_dir():
        where = "" if str(folder) == str(given) else f" (looked for at {folder})"
        raise ConfigError(f"{key}: {missing_policy_message(given)}{where}")
    return folder
