"""What a person sees in a terminal and in a log of it, and the picture of a run."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentlightning.trackers import TrackerHooks
from agentlightning.types import Call, Evaluation, Progress, Rollout, RolloutStatus, StepReport
from agl_trackers.activity import Activity
from agl_trackers.console import ConsoleTracker
from agl_trackers.plot import PlotTracker

RUN = {"run_id": "run-1", "steps": 3, "about": {"agent": "calc"}, "note": "A tiny policy, made from nothing."}
SUMMARY = {
    "totals": {"calls": 6.0, "calls_exact": 6.0, "tokens_trained": 30.0, "logprob_gap_max": 2e-6},
    "accounts": {"runner": {"abandoned": 2}},
    "alarms": {"tools": {"text": "the reward rises while tools die out"}},
}


def tell(relay: TrackerHooks) -> None:
    relay.agl_run_started(RUN)
    relay.agl_evaluated(Evaluation(name="before", n=4, reward=0.25, ci=(0.1, 0.5)))
    for step in range(3):
        metrics = {"reward_mean": 0.3 + 0.2 * step, "tokens": 100.0, "rows": 2.0}
        report = StepReport(run_id="run-1", step=step, policy="p", policy_version=step + 1, metrics=metrics)
        relay.agl_policy_updated(report)
    relay.agl_evaluated(Evaluation(name="after", n=4, reward=0.75, ci=None))
    relay.agl_run_finished(SUMMARY)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_terminal_shows_progress_comparison_and_what_was_counted(tmp_path: Path, terminal: bool) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(
        tmp_path, Console(file=out, force_terminal=terminal, width=100, color_system=None)
    )
    tell(TrackerHooks([tracker]))
    text = out.getvalue()
    for part in ("A tiny policy, made from nothing.", "3/3", "before, greedy", "0.100 – 0.500", "× 3.00"):
        assert part in text
    assert "alarm the reward rises while tools die out" in text
    assert "6 calls, 6 captured exactly" in text and "2.0e-06" in text and "runner: 2 × abandoned" in text
    assert "\x1b[?25h" in text or not terminal  # the cursor is given back


def test_tokens_that_nothing_pulled_at_are_not_called_trained(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=100, color_system=None))
    totals = {**SUMMARY["totals"], "tokens_trained": 0.0, "tokens_zero_advantage": 30.0}
    TrackerHooks([tracker]).agl_run_finished({"totals": totals})
    assert "0 tokens trained (30 others had advantage 0)" in out.getvalue()


def test_each_steps_reward_is_shown_once_whether_one_policy_is_trained_or_several(tmp_path: Path) -> None:
    for trained in ([], ["a", "b"]):
        tracker = ConsoleTracker(tmp_path, Console(file=io.StringIO(), width=100))
        tracker.start({**RUN, "trained": trained})
        for step in range(3):
            for policy in trained or ["p"]:
                metrics = {"reward_mean": 0.25 * (step + 1), "credit_mean": 0.5, "tokens": 1.0}
                report = StepReport(run_id="r", step=step, policy=policy, policy_version=1, metrics=metrics)
                tracker.step(report)
        assert tracker.rewards == [0.25, 0.5, 0.75]
        assert all(len(values) == 3 for values in tracker.policies.values())


def test_an_evaluation_without_steps_has_no_table_of_what_policies_trained(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=100))
    tracker.start({**RUN, "steps": 0, "trained": ["checker", "writer"]})
    tracker.evaluated(Evaluation(name="eval", n=4, reward=0.5, metrics={"calls_made": 16.0}))
    tracker.finish({"run_id": "r", "evaluation": {"calls_made": 16.0}})
    assert "reward 0.500" in out.getvalue() and "tokens" not in out.getvalue()


def test_calls_of_attempts_that_were_left_behind_are_no_failed_captures(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=120))
    totals = {**SUMMARY["totals"], "calls": 10.0, "calls_left_behind": 4.0}
    tracker.finish({"totals": totals})
    said = "6 calls, 6 captured exactly (and 4 in attempts that were followed by another) · 30 tokens"
    assert said in out.getvalue()


@pytest.mark.parametrize(
    ("summary", "failed", "said"),
    [
        ({"policy": "p", "learned": True}, 1, "Next: agl rollouts r; agl explain r; agl serve r\n"),
        ({"policy": "p", "learned": False}, 1, "Next: agl rollouts r --failed; agl explain r\n"),
        ({"policy": "p", "learned": False}, 0, "Next: agl rollouts r; agl explain r\n"),
        ({}, 1, "Next: agl rollouts r\n"),
    ],
)
def test_a_policy_that_learned_nothing_is_not_to_be_served(
    tmp_path: Path, summary: dict[str, Any], failed: int, said: str
) -> None:
    metrics = {"rollouts": 4.0, "rollouts_failed": float(failed)}
    report = StepReport(run_id="r", step=0, policy="p", policy_version=1, metrics=metrics)
    evaluation = Evaluation(name="before", n=4, reward=0.0, failed=failed)
    tellings: list[Callable[[ConsoleTracker], None]] = [
        lambda tracker: tracker.step(report),
        lambda tracker: tracker.evaluated(evaluation),
        lambda tracker: tracker.resumed({**RUN, "run_id": "r"}, [report], []),
        lambda tracker: tracker.resumed({**RUN, "run_id": "r"}, [], [evaluation]),
    ]
    for tell_of_failures in tellings:
        out = io.StringIO()
        tracker = ConsoleTracker(tmp_path, Console(file=out, width=100))
        tell_of_failures(tracker)
        tracker.finish({"run_id": "r", **summary})
        assert out.getvalue().endswith(said)


def test_an_entry_of_policies_that_matched_no_call_is_named_with_those_who_called(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=100))
    tracker.start({**RUN, "agents": {"writer": "writer", "cheker": "old", "re:.*": "writer"}})
    tracker.step(StepReport(run_id="r", step=0, policy="writer", policy_version=1))
    assert "WARNING" not in out.getvalue()  # no call was seen, as where gateways are elsewhere
    tracker = ConsoleTracker(tmp_path, tracker.console)
    tracker.start({**RUN, "agents": {"writer": "writer", "cheker": "old", "re:.*": "writer"}})
    for who in ("writer", "checker"):
        tracker.agl_call_recorded(Call(call_id="c", rollout_id="r", attempt_id="a", tags={"agent": who}))
    for step in range(2):
        tracker.step(StepReport(run_id="r", step=step, policy="writer", policy_version=1))
    said = (
        "WARNING: agent.policies: 'cheker' has matched no call, so 'old' got none by it; compare it with the "
        "names that made calls: checker, writer\n"
    )
    assert out.getvalue().count(said) == out.getvalue().count("WARNING") == 1  # after the first step
    tracker.finish({})
    assert out.getvalue().count(said) == out.getvalue().count("WARNING") == 2


def test_each_step_says_how_many_failed_how_they_count_and_why(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=100))
    tracker.start({**RUN, "steps": 3})
    counts = {"rollouts": 16.0, "rollouts_failed": 11.0, "rollouts_no_reward": 1.0}
    for count in (4.0, 16.0):
        metrics = {**counts, "reward_mean": 0.75, "reward_count": count}
        reason = "agent-raised: ValueError: [/] gone"
        tracker.step(
            StepReport(run_id="r", step=0, policy="p", policy_version=1, metrics=metrics, reason=reason)
        )
    said = out.getvalue()
    assert "reward 0.750 (12 of 16 failed, left out: agent-raised: ValueError: [/] gone)  rows" in said
    assert "(12 of 16 failed, with the failure table's reward: agent-raised: ValueError" in said


def test_what_others_named_is_never_markup(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path / "[red]", Console(file=out, force_terminal=True, width=200))
    odd = "[/] [red] :smile:"
    tracker.start({"run_id": odd, "steps": 2, "about": {"agent": odd}, "note": odd})
    tracker.evaluated(Evaluation(name=f"{odd}a", n=1, reward=0.0))
    tracker.step(StepReport(run_id="r", step=0, policy=f"{odd}b", policy_version=1))
    tracker.finish({"accounts": {f"{odd}c": {odd: 1}}})
    shown = out.getvalue()
    assert all(f"{odd}{which}" in shown for which in ("", "a", "b", "c")) and "/[red]" in shown


def test_a_run_that_breaks_off_gives_the_terminal_back(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, force_terminal=True, width=100))
    relay = TrackerHooks([tracker])
    relay.agl_run_started(RUN)
    relay.agl_policy_updated(StepReport(run_id="run-1", step=0, policy="p", policy_version=1))
    assert out.getvalue().count("\x1b[?25l") == 1
    relay.close()
    assert out.getvalue().count("\x1b[?25h") == 1


# --------------------------------------------------------------------------------- between two steps
class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ended(rollout_id: str, status: RolloutStatus = RolloutStatus.SUCCEEDED) -> Rollout:
    return Rollout(rollout_id=rollout_id, status=status)


def call(rollout_id: str, tokens: int) -> Call:
    return Call(call_id="c", rollout_id=rollout_id, attempt_id="a", response_ids=[1] * tokens)


def test_a_log_says_what_is_under_way_when_nothing_was_printed_for_long(tmp_path: Path) -> None:
    out, clock = io.StringIO(), Clock()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=200), clock)
    tracker.start({"run_id": "r", "steps": 3})
    before = len(out.getvalue())
    tracker.agl_progress(Progress(what="evaluation before", rollouts=["a", "b", "c"]))
    tracker.agl_rollout_finished(ended("a"))
    clock.now = 29
    tracker.agl_call_recorded(call("b", 60))
    assert len(out.getvalue()) == before
    clock.now = 30
    tracker.agl_rollout_finished(ended("b", RolloutStatus.REQUEUING))
    tracker.agl_rollout_finished(ended("c", RolloutStatus.FAILED))
    clock.now = 40
    tracker.agl_call_recorded(call("b", 60))
    assert out.getvalue()[before:] == "evaluation before 2 of 3 rollouts · 2.0 tokens/s · 30 s\n"


def test_the_line_of_an_update_has_rows_memory_and_the_time_that_is_left(tmp_path: Path) -> None:
    out, clock = io.StringIO(), Clock()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=200), clock)
    tracker.start({"run_id": "r", "steps": 3})
    clock.now = 100
    tracker.step(StepReport(run_id="r", step=0, policy="p", policy_version=1, seconds={"update": 100.0}))
    before = len(out.getvalue())
    tracker.agl_progress(Progress(what="rollouts", step=1, rollouts=["a"]))
    tracker.agl_rows_built(1)
    clock.now = 140
    memory = {"trainer": 2_100_000_000, "engine": 900_000_000}
    at = Progress(what="update", step=1, unit="rows", done=64, total=128, tokens=8000, memory=memory)
    tracker.agl_progress(at)
    line = "step    2/3  update 64 of 128 rows · 200 tokens/s · 40 s · memory: trainer 2.1 GB, engine 0.9 GB"
    assert out.getvalue()[before:] == f"{line}  ETA 160 s\n"


def test_a_rollout_of_a_later_step_may_end_before_it_is_waited_for() -> None:
    activity = Activity(Clock())
    activity.progress(Progress(what="rollouts", step=0, rollouts=["a", "b"]))
    for one in ("a", "x", "b"):
        activity.rollout_ended(one)
    activity.progress(Progress(what="rollouts", step=0, rollouts=["c"]))  # a batch more, of the same step
    assert activity.line() == "rollouts 2 of 3 · 0 s"
    activity.progress(Progress(what="rollouts", step=1, rollouts=["x", "y"]))
    assert activity.line() == "rollouts 1 of 2 · 0 s" and activity.step == 1
    activity.progress(Progress(what="update", step=1, policy="wolves"))
    assert activity.line() == "update of wolves · 0 s"
    activity.end()
    assert activity.line() == "" and activity.step is None


def test_a_terminal_shows_it_before_the_first_step_too(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, force_terminal=True, width=100))
    tracker.start({"run_id": "r", "steps": 3})
    tracker.agl_progress(Progress(what="evaluation before", rollouts=["a", "b"]))
    tracker.agl_rollout_finished(ended("b"))
    tracker.close()
    assert "evaluation before 1 of 2 rollouts" in out.getvalue()


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    tell(TrackerHooks([PlotTracker(tmp_path)]))
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_plot_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    tell(TrackerHooks([PlotTracker(tmp_path)]))
    assert "pip install matplotlib" in caplog.text and not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize(
    ("before", "after", "said", "unsaid"),
    [
        (0.25, 0.75, "gain", "no change"),
        (0.75, 0.2, "loss  ", "×"),
        (0.5, 0.5, "no change", "×"),
        (0.0, 0.5, "+0.500", "×"),
        (-1.0, -0.5, "+0.500", "×"),
    ],
)
def test_a_loss_is_called_a_loss(tmp_path: Path, before: float, after: float, said: str, unsaid: str) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=100, color_system=None))
    tracker.start(RUN)
    for name, reward in (("before", before), ("after", after)):
        tracker.evaluated(Evaluation(name=name, n=4, reward=reward))
    tracker.finish(SUMMARY)
    assert said in out.getvalue() and unsaid not in out.getvalue().replace("× abandoned", "")


def test_a_step_without_a_reward_shows_none(tmp_path: Path) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, width=100, color_system=None))
    tracker.start(RUN)
    tracker.step(StepReport(run_id="r", step=0, policy="p", policy_version=1, metrics={"tokens": 1.0}))
    assert "reward none" in out.getvalue() and "nan" not in out.getvalue()
