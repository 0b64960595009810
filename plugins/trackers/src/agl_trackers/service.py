"""What the trackers of this package share: when a run is opened, continued, and closed.

Invariants: a step stands once in a curve, also after a resume; a run that ends with an error is closed as
failed; what is logged before a run could be opened is an error, which the run counts.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlightning.plugins.suite import install_line
from agentlightning.types import Evaluation, StepReport, UsageError
from agl_trackers.own_thread import OwnThread
from agl_trackers.points import Point, evaluation_point, step_point, summary_values

log = logging.getLogger(__name__)
PATIENCE = 60.0
"""Seconds that the end of a run waits for a service."""


def _later(method: Callable[..., None]) -> Callable[..., None]:
    """Make each call of a tracker's method on the tracker's thread, if somebody hears of its errors."""

    @wraps(method)
    def put(self: ServiceTracker, *args: Any) -> None:
        if self._report is None:
            method(self, *args)
            return
        if self._thread is None:
            self._thread = OwnThread(f"tracker {type(self).__name__}", self._report)
        self._thread.put(partial(method, self, *args))

    return put


class ServiceTracker:
    """A tracker whose service keeps a run's curves. ``folder``: the run's own. A service may be slow, or
    gone: a run's calls are made on a thread of their own, in order, and do not hold the run.

    A service implements :meth:`open`, :meth:`reopen`, :meth:`log` and :meth:`end`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patience = PATIENCE
        """Seconds that :meth:`close` waits for the service."""
        self._thread: OwnThread | None = None
        self._report: Callable[..., None] | None = None
        self.is_open = False
        self.run_id = folder.name
        self._several = False
        self._finished = 0
        self._steps = 0

    # ------------------------------------------------------------------------------- of each service
    def open(self, run: Mapping[str, Any]) -> None:
        """Begin a run. ``run``: its record."""
        raise NotImplementedError

    def reopen(self, run: Mapping[str, Any], points: Sequence[Point]) -> None:
        """Continue a run, whose curves then hold ``points`` and nothing else."""
        raise NotImplementedError

    def log(self, point: Point) -> None:
        """Add a point."""
        raise NotImplementedError

    def end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        """Close the run: finished with the ``values`` of its summary, or failed by ``error``."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------- of the protocol
    def report_to(self, failed: Callable[..., None]) -> None:
        """Make calls on the tracker's thread from now on, and tell ``failed(error, calls)`` of those that
        fail or are left behind.
        """
        self._report = failed

    @_later
    def start(self, run: Mapping[str, Any]) -> None:
        self._begin(run)
        self.open(run)
        self.is_open = True

    @_later
    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        self._begin(run)
        points = [step_point(report, several=self._several) for report in reports]
        self._finished = max((point.step for point in points), default=0)
        points += [self._evaluation(evaluation) for evaluation in evaluations]
        self.reopen(run, sorted(points, key=lambda point: point.step))
        self.is_open = True

    @_later
    def step(self, report: StepReport) -> None:
        self._finished = report.step + 1
        self._add(step_point(report, several=self._several))

    @_later
    def evaluated(self, evaluation: Evaluation) -> None:
        self._add(self._evaluation(evaluation))

    @_later
    def finish(self, summary: Mapping[str, Any]) -> None:
        self._end(None, summary_values(summary))

    @_later
    def failed(self, error: BaseException) -> None:
        self._end(error, {})

    def close(self) -> None:
        """Close a run of which nobody said how it ended as failed, and wait for the service."""
        self._end_unsaid()
        thread, self._thread = self._thread, None
        if thread is not None and self._report is not None and (left := thread.close(self.patience)):
            name = type(self).__name__
            why = f"tracker {name} did not end within {self.patience:g} s; {left} calls were left behind"
            log.error(why)
            self._report(TimeoutError(why), left)

    @_later
    def _end_unsaid(self) -> None:
        self._end(RuntimeError("the run ended without a summary"), {})

    def _begin(self, run: Mapping[str, Any]) -> None:
        self.run_id = str(run["run_id"])
        self._steps = int(run.get("steps", 0))
        self._several = bool(run.get("trained"))
        self._finished = 0

    def _evaluation(self, evaluation: Evaluation) -> Point:
        return evaluation_point(evaluation, finished=self._finished, steps=self._steps)

    def _add(self, point: Point) -> None:
        if not self.is_open:
            raise RuntimeError(f"run {self.run_id} is not open: its start failed")
        self.log(point)

    def _end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        if self.is_open:
            self.is_open = False
            self.end(error, values)


def library(name: str, tracker: str) -> ModuleType:
    """Import a tracker's library. Raise UsageError, with the line that installs it, if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != name.partition(".")[0]:
            raise UsageError(f"trackers.{tracker}: {name} cannot be imported: {error}") from error
        raise UsageError(
            f"trackers.{tracker}: {name} is not installed; in a checkout of Agent Lightning: "
            f"{install_line('tracker', tracker)}"
        ) from None


def settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's record says of its configuration: all but what grows while it runs."""
    grows = {"summary", "evaluations", "resumed", "create_time", "update_time", "resources"}
    return {name: value for name, value in run.items() if name not in grows}
