"""Names, values and steps of a run's points, and trackers without their library."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from agentlightning.plugins.manager import build
from agentlightning.trackers import open_trackers
from agentlightning.types import Evaluation, StepReport, UsageError
from agl_trackers import plugin
from agl_trackers.points import Point, evaluation_point, flat, step_point, summary_values

NAMES = ("tensorboard", "wandb", "mlflow", "trackio")


def test_metrics_phases_and_counters_have_their_names() -> None:
    metrics = {"reward_mean": 0.5, "tokens": 8.0, "left_out/stale": 2.0, "kl": math.nan, "x": math.inf}
    report = StepReport(
        run_id="r", step=4, policy="p", policy_version=3, metrics=metrics, seconds={"rollout": 4.0}
    )
    values = {
        "train/reward_mean": 0.5,
        "train/tokens": 8.0,
        "left_out/stale": 2.0,
        "seconds/rollout": 4.0,
        "train/policy_version": 3.0,
        "train/tokens_per_second": 2.0,
    }
    assert step_point(report) == Point(5, values)
    assert step_point(report, several=True).values == {f"p/{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("name", "curve", "step"),
    [
        ("before", "evaluation", 0),
        ("step-12", "evaluation", 12),
        ("after", "evaluation", 40),
        ("before-sampled", "evaluation_sampled", 0),
        ("after-sampled", "evaluation_sampled", 40),
        ("oracle", "evaluation-oracle", 7),
        ("step-last", "evaluation-step-last", 7),
    ],
)
def test_an_evaluations_curve_and_step(name: str, curve: str, step: int) -> None:
    point = evaluation_point(Evaluation(name=name, n=2, reward=0.5), finished=7, steps=40)
    assert point == Point(step, {f"{curve}/reward": 0.5, f"{curve}/tasks": 2.0, f"{curve}/failed": 0.0})


def test_a_summarys_numbers_keep_their_places() -> None:
    summary = {"a": 1, "b": {"c": 2.5, "d": {"e": True, "f": None}}, "g": [1], "h": "1", "i": math.nan}
    assert summary_values(summary) == {"a": 1.0, "b.c": 2.5}
    assert flat(summary)["b.d.e"] is True and flat(summary)["g"] == [1]


@pytest.mark.parametrize("name", NAMES)
def test_without_its_library_a_tracker_is_refused_with_the_line_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    known = build([plugin], discover=False).trackers
    with pytest.raises(UsageError, match=rf"trackers.{name}: {name} is not installed.*trackers\[{name}\]"):
        open_trackers(known, [name], tmp_path / "run")


def test_each_has_a_spec_with_options_that_describe_themselves() -> None:
    specs = {spec.name: spec for spec in plugin.agl_trackers()}
    assert set(specs) == {*NAMES, "console", "events", "plot"}
    for spec in (specs[name] for name in NAMES):
        assert not spec.default
        assert spec.options is not None and spec.about
        assert all(field.description for field in spec.options().model_fields.values())
