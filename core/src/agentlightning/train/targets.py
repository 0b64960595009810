"""Objects that a configuration names: ``module:object``, and the tasks of a dataset."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

from agentlightning.algorithms.rollouts.batching import DatasetError, check_tasks
from agentlightning.algorithms.rollouts.datasets import tasks_of
from agentlightning.train.fields import ConfigError
from agentlightning.train.run_config import DataSection, RunConfig


def import_target(target: str, key: str) -> Any:
    """The object that ``module:object`` names; ``key`` is the configuration key, for the error."""
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


def load_data(section: DataSection | None, config: RunConfig, key: str) -> list[Any]:
    """The tasks of a data section, each plain JSON; an empty list for none."""
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
    """The dataset that ``loader(**args)`` returns; its own errors are told with the target that raised
    them.
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
        found = list(found) if isinstance(found, Iterator) else found  # a generator raises only now
    except Exception as error:
        raise ConfigError(f"{key}.target: {target} raised {_describe_error(error)}") from error
    if found is None or isinstance(found, str | bytes | dict):
        raise ConfigError(f"{key}.target: {target} returned a {type(found).__name__}, not a list of tasks")
    return found


def _describe_error(error: Exception) -> str:
    """An error of the user's code in one line: kind, message, and the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen ")]
    where = f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {error}{where}"
