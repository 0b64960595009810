"""Trackers write a run's metrics to files, terminal and a picture. ``agl_trackers`` registers others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import Tracker
from agentlightning.types import Evaluation, StepReport

log = logging.getLogger(__name__)


class TrackerHooks:
    """Listens to the notification hooks of one run and tells its trackers. A tracker's error is counted,
    never fatal.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)
        self.errors: Counter[str] = Counter()

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in self.trackers:
            try:
                call(tracker)
            except Exception:
                name = type(tracker).__name__
                self.errors[name] += 1
                if self.errors[name] <= 3:
                    log.exception("tracker %s failed; the run goes on", name)

    def close(self) -> None:
        """Close the trackers that have a method ``close``, also after a failed run."""
        self._tell(lambda tracker: getattr(tracker, "close", lambda: None)())

    @hookimpl
    def agl_run_started(self, run: dict[str, Any]) -> None:
        self._tell(lambda t: t.start(run))

    @hookimpl
    def agl_run_resumed(
        self, run: dict[str, Any], reports: list[StepReport], evaluations: list[Evaluation]
    ) -> None:
        def tell(tracker: Tracker) -> None:
            resumed = getattr(tracker, "resumed", None)
            if resumed is None:
                tracker.start(run)
            else:
                resumed(run, reports, evaluations)

        self._tell(tell)

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self._tell(lambda t: t.step(report))

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self._tell(lambda t: t.evaluated(evaluation))

    @hookimpl
    def agl_run_finished(self, summary: dict[str, Any]) -> None:
        self._tell(lambda t: t.finish(summary))
