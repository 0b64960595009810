"""Opening what a run's description names by its kind: with options that its own model checks.

An error about an option says its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentlightning.plugins.manager import Plugins, pick
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError, meant

if TYPE_CHECKING:
    from agentlightning.specs import RemoteRunner, RunnerJob


Options = TypeVar("Options", bound=BaseModel)


def checked_options(model: type[Options], given: Mapping[str, object], place: str) -> Options:
    """Return the options. Raise :class:`ConfigError` with a line for each wrong one, its key below
    ``place``.
    """
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise ConfigError("\n".join(_line(place, model, {**one}) for one in error.errors())) from None


def _line(place: str, model: type[BaseModel], error: Mapping[str, Any]) -> str:
    """Return an error about an option: its key, what is wrong, and the key that was meant."""
    where, given = ".".join([place, *map(str, error["loc"])]), error["input"]
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such option{meant(str(error['loc'][-1]), model.model_fields)}"
    return f"{where}: {error['msg']}" + (f", not {given!r}" if isinstance(given, str | int | float) else "")


def open_runner(plugins: Plugins, job: RunnerJob) -> RemoteRunner:
    """Return the runner that ``job.config.runner`` names. UsageError for an unknown kind, a wrong option,
    and whatever the kind itself refuses.
    """
    if job.config.runner is None:
        raise UsageError("runner: give {kind: …}, the name of a runner (`agl plugins` lists them)")
    options = dict(job.config.runner)
    kind = options.pop("kind")
    spec = pick(plugins.runners, "runner", kind)
    return spec.factory(job, checked_options(spec.options(), options, "runner"))
