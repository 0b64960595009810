"""Makes the trainer, the agent and the tasks of a run's description."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from agentlightning.algorithms.schedule import schedule_of
from agentlightning.algorithms.tasks import DatasetError, check_tasks, tasks_of
from agentlightning.child_environment import engine_key
from agentlightning.decorator.agents import AgentError, RunnableAgent, as_agent
from agentlightning.plugins.manager import load as load_plugins
from agentlightning.plugins.suite import instead
from agentlightning.proxies import go_direct
from agentlightning.train.config import PolicySection, RunConfig
from agentlightning.train.policies import Policies, fetch_pretrained
from agentlightning.train.trainer import Trainer
from agentlightning.types import LLM, UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import DataSection
from agentlightning.types.work import PolicyFolder, missing_policy_message


class ConfiguredRun(NamedTuple):
    """The trainer, agent and tasks of a configuration."""

    trainer: Trainer
    agent: Any
    train: Sequence[Any] = ()
    """Tasks to train on."""
    val: Sequence[Any] = ()
    """Held-out tasks."""


def configure(config: RunConfig) -> ConfiguredRun:
    """Import, open and check the objects that a configuration names. :class:`ConfigError` names the key."""
    agent = load_agent(config)
    trainer = Trainer.from_config(with_objects(config))
    if config.training.steps and config.environment.train is None:
        raise ConfigError(
            f"environment.train: training.steps is {config.training.steps}, and there are no tasks to train "
            "on; give file or target, or set training.steps to 0"
        )
    schedule_of(trainer.plugins, trainer.recipe, config.training)
    train = load_data(config.environment.train, config, "environment.train")
    val = load_data(config.environment.val, config, "environment.val")
    check_private(config.environment.private, [*train, *val])
    check_agent_takes(agent, train, "environment.train")
    check_agent_takes(agent, val, "environment.val")
    return ConfiguredRun(trainer, agent, train, val)


def with_objects(config: RunConfig) -> RunConfig:
    """Return the configuration with objects in place of their names, and with absolute paths."""
    evaluation = config.evaluation
    sets = {
        name: evaluation_set(one, config, f"evaluation.sets.{name}") for name, one in evaluation.sets.items()
    }
    callbacks = [
        import_target(one, f"callbacks[{index}]") if isinstance(one, str) else one
        for index, one in enumerate(config.callbacks)
    ]
    return config.serving(
        policies_of(config),
        evaluation=evaluation.model_copy(update={"sets": sets}),
        callbacks=callbacks,
        output=config.path(config.output),
        store=config.store_location(),
    )


def policies_of(config: RunConfig) -> Policies:
    """Return the policies with absolute folders, and with keys of endpoints from the environment."""
    served, written = config.served, cast(Any, config.backend.policy)  # its forms: Policies.named
    if written is None:
        raise ConfigError("backend.policy: give the folder of a policy, or several by name")
    found: dict[str, PolicyFolder | LLM] = {}
    for name, given in {**served.trained, **served.frozen}.items():
        section = written[name] if served.named else None
        key = f"backend.policy.{name}" if served.named else "backend.policy"
        if isinstance(given, PolicyFolder):
            key = f"{key}.path" if isinstance(section, PolicySection) else key
            found[name] = dataclasses.replace(given, path=_folder(config, given.path, key))
        elif isinstance(section, PolicySection) and (variable := section.api_key_env):
            if not (secret := engine_key(variable)):
                raise ConfigError(f"{key}.api_key_env: the environment variable {variable} is not set")
            found[name] = msgspec.structs.replace(given, api_key=secret)
    return served.replaced(found)


def _folder(config: RunConfig, given: str | Path, key: str) -> Path:
    folder = config.path(given)
    if not folder.is_dir():
        if (fetched := fetch_pretrained(given, load_plugins())) is not None:
            return fetched
        where = "" if str(folder) == str(given) else f" (looked for at {folder})"
        raise ConfigError(f"{key}: {missing_policy_message(given)}{where}")
    return folder


# ------------------------------------------------------------------------------------- agents and tasks
def load_agent(config: RunConfig) -> RunnableAgent:
    """Import and return the agent ``agent.target``, or make the one that a plugin's fields name."""
    go_direct(config.gateway.advertise)  # before the import: a module may make its client at once
    for spec in load_plugins().sections.values():
        if spec.agent is not None and (found := spec.agent(config)) is not None:
            agent: RunnableAgent = found
            return agent
    if config.agent.target is None:
        raise ConfigError("agent.target: give module:object, the agent to run, or agent.command, a program")
    try:
        return as_agent(import_target(config.agent.target, "agent.target"))
    except AgentError as error:
        raise ConfigError(f"agent.target: {error}") from None


def check_private(names: Sequence[str], tasks: Sequence[Any]) -> None:
    """Raise :class:`ConfigError` for a private field that no task has: nothing would guard what was meant."""
    known = {str(field) for task in tasks if isinstance(task, Mapping) for field in task}
    for name in names if tasks else ():
        if name not in known:
            fields = ", ".join(sorted(known)) or "no fields"
            raise ConfigError(f"environment.private: no task has a field {name!r}; they have {fields}")


def check_agent_takes(agent: Any, tasks: Sequence[Any], key: str) -> None:
    """Raise :class:`ConfigError` for a task that the agent cannot take, if it has a method ``check_task``."""
    if not hasattr(agent, "check_task"):
        return
    for index, task in enumerate(tasks):
        try:
            agent.check_task(task)
        except UsageError as error:
            raise ConfigError(f"{error} (task {index} of {key})") from None


def import_target(target: str, key: str) -> Any:
    """Import and return ``module:object``; ``key``: the configuration key, for the error."""
    module, _, name = target.partition(":")
    if not name:
        raise ConfigError(f"{key}: {target!r} must be written module:object")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{key}: cannot import {module!r}: {error}; add its folder to pythonpath, or install it"
        ) from error
    except Exception as error:
        raise ConfigError(f"{key}: importing {module!r} raised {_describe_error(error)}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"{key}: module {module!r} has no {name!r}") from None
    return found


def evaluation_set(given: Any, config: RunConfig, key: str) -> Any:
    """Return the tasks of an evaluation set, or the name of a task set as it is."""
    if isinstance(given, str):
        known = load_plugins().table("agl_task_sets")
        if given in known:
            return given
        if not config.path(given).exists():
            hint = instead(given, known, "task set")
            raise ConfigError(f"{key}: no file ({config.path(given)}) and no task set is {given!r}{hint}")
        given = DataSection(file=given)
    return load_data(given, config, key) if isinstance(given, DataSection) else given


def load_data(section: DataSection | None, config: RunConfig, key: str) -> list[Any]:
    """Return the tasks of a data section, each plain JSON; an empty list for ``None``."""
    if section is None:
        return []
    if (section.file is None) == (section.target is None):
        raise ConfigError(f"{key}: give either file or target")
    try:
        if section.target is None:
            tasks = tasks_of(config.path(section.file or ""), f"{key}.file")
        else:
            made = _call(import_target(section.target, f"{key}.target"), section.target, section.args, key)
            tasks = tasks_of(made, key)
    except DatasetError as error:
        raise ConfigError(str(error)) from None
    if not tasks:
        raise ConfigError(f"{key}: the dataset is empty")
    tasks = tasks[: section.limit] if section.limit else tasks
    check_tasks(tasks, key)
    return tasks


def _call(loader: Any, target: str, args: dict[str, Any], key: str) -> Any:
    """Return the dataset ``loader(**args)``. Errors of the loader become a :class:`ConfigError` that names
    ``target``.
    """
    if not callable(loader):
        kind = type(loader).__name__
        raise ConfigError(f"{key}.target: {target} is a {kind}, not a function that returns tasks")
    try:
        signature = inspect.signature(loader)
        signature.bind(**args)
    except TypeError as error:
        raise ConfigError(f"{key}.args: {error}; {target} takes {signature}") from None
    except ValueError:  # written in C, without a signature to look at
        pass
    try:
        found = loader(**args)
        found = list(found) if isinstance(found, Iterator) else found  # a generator raises its errors here
    except Exception as error:
        raise ConfigError(f"{key}.target: {target} raised {_describe_error(error)}") from error
    if found is None or isinstance(found, str | bytes | dict):
        raise ConfigError(f"{key}.target: {target} returned a {type(found).__name__}, not a list of tasks")
    return found


def _describe_error(error: Exception) -> str:
    """Return an error of the user's code in one line: kind, message, and the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen ")]
    where = f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {error}{where}"
