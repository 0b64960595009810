"""Trackio: a database on this machine, which ``trackio show`` draws.

A resumed run is written anew from the run's reports, because Trackio keeps every value that was logged. It
has no status of a run: one that failed has an alert.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from agl_trackers.options import TrackioOptions
from agl_trackers.points import Point, flat
from agl_trackers.service import ServiceTracker, library, settings


class TrackioTracker(ServiceTracker):
    """Writes where Trackio keeps its databases (its variable ``TRACKIO_DIR``)."""

    def __init__(self, folder: Path, options: TrackioOptions = TrackioOptions()) -> None:
        super().__init__(folder)
        self.trackio = library("trackio", "trackio")
        self.options = options
        self._run: Any = None

    def open(self, run: Mapping[str, Any]) -> None:
        with _quiet():
            self._run = self.trackio.init(
                project=self.options.project,
                name=self.run_id,
                group=self.options.group,
                config=flat(settings(run)),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def reopen(self, run: Mapping[str, Any], points: Sequence[Point]) -> None:
        try:
            runs = self.trackio.Api().runs(self.options.project)
        except ValueError:  # there is no such project yet
            runs = ()
        for earlier in runs:
            if earlier.name == self.run_id:
                earlier.delete()
        self.open(run)
        for point in points:
            self.log(point)

    def log(self, point: Point) -> None:
        self._run.log(point.values, step=point.step)

    def end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        if values:
            self.log(Point(self._finished, {f"summary/{name}": value for name, value in values.items()}))
        if error is not None:
            level = self.trackio.AlertLevel.ERROR
            with _quiet():
                self._run.alert("the run failed", f"{type(error).__name__}: {error}", level=level)
        with _quiet():
            self._run.finish()


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what Trackio prints to stderr: a command's result on stdout stays machine-readable."""
    with redirect_stdout(sys.stderr):
        yield
