"""The trackers of a run: names in its description, with options, made into trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.plugins.manager import pick
from agentlightning.plugins.options import checked_options
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
    options = checked_options(spec.options(), given, f"trackers.{spec.name}")
    return spec.factory(folder, options)
