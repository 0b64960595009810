"""What every tracker of a service keeps: curves, settings, resumes, failures.

A test of one service inherits :class:`TrackerContract` and says how a tracker is made and how its
service's own library reads a run.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentlightning.trackers import TrackerHooks
from agentlightning.types import Evaluation, StepReport

RUN_ID = "20260101-000000-calc-s1"
RUN = {
    "run_id": RUN_ID,
    "steps": 4,
    "seed": 7,
    "about": {"agent": "calc · solve"},
    "recipe": {"name": "grpo", "group_size": 8, "kl": 0.0},
    "options": {"lr": 1e-4},
    "resources": {"policy": "re-1"},
}
SUMMARY = {
    "run_id": RUN_ID,
    "reward_after": 0.75,
    "learned": True,
    "totals": {"calls": 12.0},
    "accounts": {"gateway": {"lost-records": 3}, "runner": {"abandoned": 2}},
}


class Kept(NamedTuple):
    """A run as its service's own library reads it."""

    curves: dict[str, list[tuple[int, float]]]
    """Name → points, in order of their steps."""
    settings: dict[str, Any]
    """Dotted name → value."""
    failed: bool


def report(step: int, policy: str = "policy", reward: float | None = None) -> StepReport:
    metrics = {
        "reward_mean": step / 8 if reward is None else reward,
        "loss": -step / 8,
        "tokens": 300.0,
        "left_out/no-reward": float(step),
        "failed/timeout": 1.0,
        "nothing": float("nan"),
    }
    seconds = {"rollout": 2.0, "update": 1.0}
    return StepReport(
        run_id=RUN_ID, step=step, policy=policy, policy_version=step + 1, metrics=metrics, seconds=seconds
    )


def evaluation(name: str, reward: float) -> Evaluation:
    return Evaluation(
        name=name, n=16, reward=reward, ci=(reward - 0.125, reward + 0.125), failed=1, seconds=2.0
    )


class TrackerContract:
    """A service's test sets ``make`` and ``read``."""

    def make(self, folder: Path, **options: Any) -> Any:
        """A tracker of the run in ``folder``."""
        raise NotImplementedError

    def read(self, folder: Path) -> Kept:
        """The run as its service keeps it."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        made = tmp_path / "runs" / RUN_ID
        made.mkdir(parents=True)
        return made

    def hooks(self, folder: Path, **options: Any) -> TrackerHooks:
        return TrackerHooks([self.make(folder, **options)])

    def finished(self, folder: Path) -> Kept:
        hooks = self.hooks(folder)
        hooks.agl_run_started(RUN)
        hooks.agl_evaluated(evaluation("before", 0.25))
        hooks.agl_evaluated(evaluation("oracle", 1.0))
        for step in range(4):
            hooks.agl_policy_updated(report(step))
            if step == 1:
                hooks.agl_evaluated(evaluation("step-2", 0.5))
        hooks.agl_evaluated(evaluation("after", 0.75))
        hooks.agl_run_finished(SUMMARY)
        hooks.close()
        assert hooks.errors == {}
        return self.read(folder)

    def test_a_runs_curves_are_kept_with_the_steps_they_belong_to(self, folder: Path) -> None:
        kept = self.finished(folder).curves
        assert kept["train/reward_mean"] == [(1, 0.0), (2, 0.125), (3, 0.25), (4, 0.375)]
        assert kept["train/loss"] == [(1, 0.0), (2, -0.125), (3, -0.25), (4, -0.375)]
        assert kept["train/tokens_per_second"] == [(step, 100.0) for step in (1, 2, 3, 4)]
        assert kept["left_out/no-reward"] == [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]
        assert kept["failed/timeout"] == [(step, 1.0) for step in (1, 2, 3, 4)]
        assert kept["seconds/update"] == [(step, 1.0) for step in (1, 2, 3, 4)]

    def test_a_missing_value_is_a_gap(self, folder: Path) -> None:
        assert "train/nothing" not in self.finished(folder).curves

    def test_evaluations_are_one_curve_with_its_interval(self, folder: Path) -> None:
        kept = self.finished(folder).curves
        assert kept["evaluation/reward"] == [(0, 0.25), (2, 0.5), (4, 0.75)]
        assert kept["evaluation/reward_low"] == [(0, 0.125), (2, 0.375), (4, 0.625)]
        assert kept["evaluation/reward_high"] == [(0, 0.375), (2, 0.625), (4, 0.875)]
        assert kept["evaluation/failed"] == [(0, 1.0), (2, 1.0), (4, 1.0)]
        assert kept["evaluation-oracle/reward"] == [(0, 1.0)]

    def test_settings_and_the_counts_of_what_was_lost_are_kept(self, folder: Path) -> None:
        kept = self.finished(folder)
        assert str(kept.settings["recipe.name"]) == "grpo" and float(kept.settings["options.lr"]) == 1e-4
        assert int(float(kept.settings["seed"])) == 7 and "resources.policy" not in kept.settings
        assert [value for _, value in kept.curves["summary/accounts.gateway.lost-records"]] == [3.0]
        assert [value for _, value in kept.curves["summary/accounts.runner.abandoned"]] == [2.0]
        assert "summary/learned" not in kept.curves and not kept.failed

    def test_a_resumed_run_continues_its_curves_and_no_step_stands_there_twice(self, folder: Path) -> None:
        first = self.hooks(folder)
        first.agl_run_started(RUN)
        first.agl_evaluated(evaluation("before", 0.25))
        for step in range(3):  # steps 2 and 3 come after the checkpoint, and are trained again
            first.agl_policy_updated(report(step, reward=9.0 if step else None))
            if step == 1:
                first.agl_evaluated(evaluation("step-2", 0.125))
        first.agl_run_failed(KeyboardInterrupt())
        first.close()
        assert self.read(folder).failed

        again = self.hooks(folder)
        again.agl_run_resumed(RUN, [report(0)], [evaluation("before", 0.25)])
        for step in (1, 2, 3):
            again.agl_policy_updated(report(step))
            if step == 1:
                again.agl_evaluated(evaluation("step-2", 0.5))
        again.agl_run_finished(SUMMARY)
        again.close()
        assert (first.errors, again.errors) == ({}, {})
        kept = self.read(folder)
        assert kept.curves["train/reward_mean"] == [(1, 0.0), (2, 0.125), (3, 0.25), (4, 0.375)]
        assert kept.curves["evaluation/reward"] == [(0, 0.25), (2, 0.5)]
        assert not kept.failed and str(kept.settings["recipe.name"]) == "grpo"

    def test_what_an_interrupted_process_had_not_written_stands_there_after_the_resume(
        self, folder: Path
    ) -> None:
        hooks = self.hooks(folder)  # the first life left nothing behind
        hooks.agl_run_resumed(RUN, [report(0), report(1)], [evaluation("before", 0.25)])
        hooks.agl_policy_updated(report(2))
        hooks.agl_run_finished(SUMMARY)
        hooks.close()
        assert hooks.errors == {}
        kept = self.read(folder).curves
        assert [step for step, _ in kept["train/loss"]] == [1, 2, 3]
        assert kept["evaluation/reward"] == [(0, 0.25)]

    def test_a_run_resumed_at_its_last_step_loses_and_doubles_nothing(self, folder: Path) -> None:
        first = self.hooks(folder)
        first.agl_run_started(RUN)
        first.agl_policy_updated(report(0))
        first.agl_run_failed(OSError("the disk is full"))
        first.close()
        again = self.hooks(folder)
        again.agl_run_resumed(RUN, [report(0)], [])
        again.agl_policy_updated(report(1))
        again.agl_run_finished(SUMMARY)
        again.close()
        kept = self.read(folder)
        assert kept.curves["train/loss"] == [(1, 0.0), (2, -0.125)] and not kept.failed

    def test_a_run_that_fails_is_closed_as_failed(self, folder: Path) -> None:
        hooks = self.hooks(folder)
        hooks.agl_run_started(RUN)
        hooks.agl_policy_updated(report(0))
        hooks.agl_run_failed(RuntimeError("out of memory"))
        hooks.close()
        kept = self.read(folder)
        assert kept.failed and kept.curves["train/loss"] == [(1, 0.0)]

    def test_a_run_that_nobody_ended_is_closed_as_failed(self, folder: Path) -> None:
        hooks = self.hooks(folder)
        hooks.agl_run_started(RUN)
        hooks.agl_policy_updated(report(0))
        hooks.close()
        assert self.read(folder).failed

    def test_several_policies_have_curves_of_their_own(self, folder: Path) -> None:
        hooks = self.hooks(folder)
        hooks.agl_run_started({**RUN, "trained": ["wolves", "town"]})
        for policy, reward in (("wolves", 0.25), ("town", 0.5)):
            hooks.agl_policy_updated(report(0, policy, reward))
        hooks.agl_run_finished(SUMMARY)
        hooks.close()
        kept = self.read(folder).curves
        assert kept["wolves/train/reward_mean"] == [(1, 0.25)] and kept["town/train/reward_mean"] == [
            (1, 0.5)
        ]

    def test_a_service_that_cannot_be_reached_is_counted_and_the_run_goes_on(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        tracker = self.make(folder)
        monkeypatch.setattr(tracker, "open", lambda run: (_ for _ in ()).throw(OSError("no route to host")))
        hooks = TrackerHooks([tracker])
        hooks.agl_run_started(RUN)
        for step in range(3):
            hooks.agl_policy_updated(report(step))
        hooks.agl_run_finished(SUMMARY)
        hooks.close()
        assert hooks.errors == {type(tracker).__name__: 4}
        assert caplog.text.count("the run goes on") == 1 and "no route to host" in caplog.text

    def test_a_slow_service_does_not_hold_the_run(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tracker, answered = self.make(folder), threading.Event()
        opened = tracker.open
        monkeypatch.setattr(tracker, "open", lambda run: (answered.wait(), opened(run)))
        hooks = TrackerHooks([tracker])
        hooks.agl_run_started(RUN)
        hooks.agl_policy_updated(report(0))  # returns: the service has not answered yet
        hooks.agl_run_finished(SUMMARY)
        answered.set()
        hooks.close()
        assert hooks.errors == {} and self.read(folder).curves["train/loss"] == [(1, 0.0)]
