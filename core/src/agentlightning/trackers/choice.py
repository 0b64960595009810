"""The trackers of a run: names in its description, with options, made into trackers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentlightning.plugins.manager import pick
from agentlightning.specs import Tracker, TrackerSpec
from agentlightning.types.base import ConfigError

DEFAULT = "default"
"""Stands for the trackers that are on by default."""


def open_trackers(
    known: Mapping[str, TrackerSpec], given: Sequence[str | Mapping[str, Any]] | None, folder: Path
) -> list[Tracker]:
    """Return the trackers that ``given`` names, for the run in ``folder``.

    ``given``: names, or mappings from a name to its options; ``None``: the default. Raise
    :class:`.PluginError` for an unknown name, :class:`ConfigError` for an option that cannot be used, and
    whatever UsageError a tracker raises, e.g. without its library.
    """
    return [
        _made(pick(dict(known), "tracker", name), options, folder)
        for name, options in tracker_choices(known, given).items()
    ]


def tracker_choices(
    known: Mapping[str, TrackerSpec], given: Sequence[str | Mapping[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    """Return name → options of the chosen trackers. One that is named a second time is an error, unless it
    was only part of the default.
    """
    default = [name for name, spec in known.items() if spec.default]
    chosen: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    for entry in [DEFAULT] if given is None else given:
        for name, options in ({entry: None} if isinstance(entry, str) else entry).items():
            if name == DEFAULT:
                if options:
                    raise ConfigError(
                        f"trackers.{DEFAULT}: it stands for {', '.join(default)} and has no options"
                    )
                chosen |= {one: {} for one in default if one not in chosen}
                continue
            if name in named:
                raise ConfigError(f"trackers: {name!r} stands there twice")
            named.add(name)
            chosen[name] = dict(options or {})
    return chosen


def _made(spec: TrackerSpec, given: Mapping[str, Any], folder: Path) -> Tracker:
    if spec.options is None:
        if given:
            raise ConfigError(f"trackers.{spec.name}: it has no options, and {', '.join(given)} is given")
        return spec.factory(folder)
    model = spec.options()
    try:
        options = model.model_validate(dict(given))
    except ValidationError as error:
        lines = (_line(spec.name, model, one) for one in error.errors())
        raise ConfigError("\n".join(lines)) from None
    return spec.factory(folder, options)


def _line(tracker: str, model: type[BaseModel], error: Mapping[str, Any]) -> str:
    """Return an error about an option: its key, what is wrong, and the key that was meant."""
    keys = [str(part) for part in error["loc"]]
    place = ".".join(["trackers", tracker, *keys])
    if error["type"] != "extra_forbidden":
        wrong = f", not {error['input']!r}" if isinstance(error["input"], str | int | float) else ""
        return f"{place}: {error['msg']}{wrong}"
    near = difflib.get_close_matches(keys[-1], model.model_fields, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(model.model_fields)}"
    return f"{place}: it has no such option. {hint}"
