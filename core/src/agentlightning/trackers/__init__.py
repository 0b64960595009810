"""Trackers write a run's metrics: to files and the terminal. Plugins have others (hook ``agl_trackers``)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import pick
from agentlightning.plugins.options import checked_options
from agentlightning.specs import Tracker, TrackerSpec
from agentlightning.types import Evaluation, StepReport
from agentlightning.types.base import ConfigError

log = logging.getLogger(__name__)
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
    replaced = {spec.instead_of for spec in known.values()}
    default = [name for name, spec in known.items() if spec.default and name not in replaced]
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


class TrackerHooks:
    """Listens to the notification hooks of one run and tells its trackers. A tracker's error is counted,
    never fatal, and its first one is logged.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)
        self.errors: Counter[str] = Counter()
        """Tracker → errors that it raised, and those that it reported."""
        for tracker in trackers:
            report_to = getattr(type(tracker), "report_to", lambda *_: None)
            report_to(tracker, partial(self._failed, tracker))

    def _tell(self, method: str, *given: Any) -> None:
        """Call a method of those trackers that have it."""
        for tracker in self.trackers:
            self._tell_one(tracker, method, *given)

    def _tell_one(self, tracker: Tracker, method: str, *given: Any) -> None:
        try:
            getattr(tracker, method, lambda *_: None)(*given)
        except Exception as error:
            self._failed(tracker, error)

    def _failed(self, tracker: Tracker, error: Exception, calls: int = 1) -> None:
        name = type(tracker).__name__
        self.errors[name] += calls
        if self.errors[name] == calls:
            log.error(
                "tracker %s failed; the run goes on, and further errors are counted", name, exc_info=error
            )

    def close(self) -> None:
        """Close the trackers that have a method ``close``, also after a failed run."""
        self._tell("close")

    @hookimpl
    def agl_run_started(self, run: dict[str, Any]) -> None:
        self._tell("start", run)

    @hookimpl
    def agl_run_resumed(
        self, run: dict[str, Any], reports: list[StepReport], evaluations: list[Evaluation]
    ) -> None:
        for tracker in self.trackers:
            if hasattr(tracker, "resumed"):
                self._tell_one(tracker, "resumed", run, reports, evaluations)
            else:
                self._tell_one(tracker, "start", run)

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self._tell("step", report)

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self._tell("evaluated", evaluation)

    @hookimpl
    def agl_run_failed(self, error: BaseException) -> None:
        self._tell("failed", error)

    @hookimpl
    def agl_run_finished(self, summary: dict[str, Any]) -> None:
        self._tell("finish", summary)
