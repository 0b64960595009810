"""Trackers write a run's metrics to files, terminal and a picture. ``agl_trackers`` registers others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import Tracker
from agentlightning.trackers.own_thread import OwnThread
from agentlightning.types import Evaluation, StepReport

log = logging.getLogger(__name__)
PATIENCE = 60.0
"""Seconds that the end of a run waits for a tracker on a thread of its own."""


class TrackerHooks:
    """Listens to the notification hooks of one run and tells its trackers. A tracker's error is counted,
    never fatal, and its first one is logged. ``patience``: seconds to wait for a slow tracker at the end.
    """

    def __init__(self, trackers: Sequence[Tracker], patience: float = PATIENCE) -> None:
        self.trackers = list(trackers)
        self.patience = patience
        self.errors: Counter[str] = Counter()
        """Tracker → errors that it raised, and calls that were left behind at the end."""
        self._threads: dict[int, OwnThread] = {}

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in self.trackers:
            made = partial(call, tracker)
            if getattr(type(tracker), "own_thread", False):
                self._thread_of(tracker).put(made)
                continue
            try:
                made()
            except Exception as error:
                self._failed(tracker, error)

    def _thread_of(self, tracker: Tracker) -> OwnThread:
        if (thread := self._threads.get(id(tracker))) is None:
            name = type(tracker).__name__
            thread = self._threads[id(tracker)] = OwnThread(f"tracker {name}", partial(self._failed, tracker))
        return thread

    def _failed(self, tracker: Tracker, error: Exception) -> None:
        name = type(tracker).__name__
        self.errors[name] += 1
        if self.errors[name] == 1:
            log.error(
                "tracker %s failed; the run goes on, and further errors are counted", name, exc_info=error
            )

    def close(self) -> None:
        """Close the trackers that have a method ``close``, also after a failed run."""
        self._tell(lambda tracker: getattr(tracker, "close", lambda: None)())
        for tracker in self.trackers:
            thread = self._threads.get(id(tracker))
            if thread is not None and (left := thread.close(self.patience)):
                name = type(tracker).__name__
                self.errors[name] += left
                log.error(
                    "tracker %s did not end within %g s; %d calls were left behind", name, self.patience, left
                )

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
    def agl_run_failed(self, error: BaseException) -> None:
        self._tell(lambda t: getattr(t, "failed", lambda _: None)(error))

    @hookimpl
    def agl_run_finished(self, summary: dict[str, Any]) -> None:
        self._tell(lambda t: t.finish(summary))
