"""A tracker's service is called on a thread of its own: in order, and what failed or was left is counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentlightning.trackers import TrackerHooks
from agentlightning.types import StepReport
from agl_trackers.points import Point
from agl_trackers.service import ServiceTracker

REPORT = StepReport(run_id="r", step=0, policy="p", policy_version=1)


class Slow(ServiceTracker):
    def __init__(self) -> None:
        super().__init__(Path("r"))
        self.may_go_on, self.seen = threading.Event(), list[tuple[str, str]]()

    def open(self, run: Mapping[str, Any]) -> None:
        self.may_go_on.wait()
        self.seen.append(("open", threading.current_thread().name))

    def log(self, point: Point) -> None:
        raise OSError("the service is gone")

    def end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        self.seen.append(("end", str(error)))


def test_it_is_called_in_order_and_its_errors_are_counted() -> None:
    slow = Slow()
    hooks = TrackerHooks([slow])
    hooks.agl_run_started({"run_id": "r"})
    hooks.agl_policy_updated(REPORT)
    hooks.agl_run_failed(RuntimeError("no memory"))
    assert slow.seen == [] and hooks.errors == {}
    slow.may_go_on.set()
    hooks.close()
    assert slow.seen == [("open", "tracker Slow"), ("end", "no memory")]
    assert hooks.errors == {"Slow": 1}


def test_one_that_never_answers_is_left_behind_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    slow.patience = 0.05
    hooks = TrackerHooks([slow])
    hooks.agl_run_started({"run_id": "r"})
    hooks.agl_policy_updated(REPORT)
    hooks.close()
    assert hooks.errors["Slow"] >= 2 and "did not end within 0.05 s" in caplog.text
    slow.may_go_on.set()
