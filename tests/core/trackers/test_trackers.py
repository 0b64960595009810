"""Which trackers a run has, with which options, what is refused, and what files and lines hold."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import PluginError, build
from agentlightning.specs import TrackerSpec
from agentlightning.trackers import TrackerHooks, open_trackers, tracker_choices
from agentlightning.trackers.files import FilesTracker
from agentlightning.trackers.lines import LinesTracker
from agentlightning.types import Evaluation, StepReport, UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import Section


class Options(Section):
    folder: str | None = None
    seconds: float = Field(default=1.0, gt=0)


class Watching:
    def __init__(self, folder: Path, options: Options) -> None:
        self.folder, self.options = folder, options


class Plugin:
    @hookimpl
    def agl_trackers(self) -> list[TrackerSpec]:
        return [TrackerSpec("watching", Watching, options=lambda: Options)]


KNOWN = build([Plugin()], discover=False).trackers


def opened(given: Any) -> list[Any]:
    return open_trackers(KNOWN, given, Path("run"))


def test_default_stands_for_the_trackers_without_a_choice() -> None:
    default = tracker_choices(KNOWN, None)
    assert list(default) == ["files", "lines"]
    assert tracker_choices(KNOWN, ["default", {"watching": {"seconds": 2}}]) == {
        **default,
        "watching": {"seconds": 2},
    }
    assert tracker_choices(KNOWN, ["default", "files"]) == default and tracker_choices(KNOWN, []) == {}


def test_a_tracker_stands_in_for_a_default_one_unless_that_is_named() -> None:
    class Display:
        @hookimpl
        def agl_trackers(self) -> list[TrackerSpec]:
            return [TrackerSpec("display", Watching, default=True, instead_of="lines")]

    known = build([Display()], discover=False).trackers
    assert list(tracker_choices(known, None)) == ["files", "display"]
    assert list(tracker_choices(known, ["default", "lines"])) == ["files", "display", "lines"]


def test_a_tracker_gets_its_options_checked() -> None:
    plain, given = opened(["watching"])[0], opened([{"watching": {"folder": "x", "seconds": 0.5}}])[0]
    assert plain.options == Options() and given.options == Options(folder="x", seconds=0.5)
    assert opened([{"watching": None}])[0].options == Options() and given.folder == Path("run")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [{"watching": {"folde": "x"}}],
            "trackers.watching.folde: there is no such option. Did you mean 'folder'?",
        ),
        ([{"watching": {"zzz": 1}}], "Known here: folder, seconds"),
        ([{"watching": {"seconds": 0}}], "trackers.watching.seconds: Input should be greater than 0, not 0"),
        ([{"files": {"x": 1}}], "trackers.files: it has no options, and x is given"),
        (["files", {"files": None}], "'files' stands there twice"),
        ([{"default": {"x": 1}}], "trackers.default: it stands for files, lines"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_key(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        opened(given)
    assert said in str(error.value)


def test_an_unknown_tracker_is_named_and_one_of_the_suites_has_its_install_line() -> None:
    with pytest.raises(PluginError, match="Did you mean 'watching'"):
        opened(["watchin"])
    with pytest.raises(
        UsageError, match=r'pip install -c constraints.txt ./core "./plugins/trackers\[mlflow\]"'
    ):
        opened([{"mlflow": {}}])


RUN = {"run_id": "run-1", "steps": 3, "about": {"agent": "calc"}}
SUMMARY = {"accounts": {"runner": {"abandoned": 2}}, "total_seconds": 4.5}


def tell(relay: TrackerHooks) -> None:
    relay.agl_run_started(RUN)
    relay.agl_evaluated(Evaluation(name="before", n=4, reward=0.25, ci=(0.1, 0.5)))
    for step in range(3):
        metrics = {"reward_mean": 0.25 * (step + 1), "tokens": 100.0, "rows": 2.0}
        relay.agl_policy_updated(
            StepReport(run_id="run-1", step=step, policy="p", policy_version=step + 1, metrics=metrics)
        )
    relay.agl_run_finished(SUMMARY)


def test_files_hold_every_step_and_valid_json(tmp_path: Path) -> None:
    tell(TrackerHooks([FilesTracker(tmp_path)]))
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == [0, 1, 2]
    names = [json.loads(line)["name"] for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert names == ["before"]
    assert json.loads((tmp_path / "summary.json").read_text()) == SUMMARY
    assert json.loads((tmp_path / "run.json").read_text()) == RUN


def test_without_a_display_each_step_is_a_plain_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(TrackerHooks([LinesTracker(tmp_path)]))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "started: agent calc",
        "evaluated before: reward 0.250, 95 % 0.100 – 0.500, n 4",
        "step 1 of p: reward 0.25, rows 2, tokens 100, 0.0 s",
        "step 2 of p: reward 0.5, rows 2, tokens 100, 0.0 s",
        "step 3 of p: reward 0.75, rows 2, tokens 100, 0.0 s",
        "counted runner: 2 × abandoned",
        f"finished after 4.5 s: {tmp_path}",
    ]


def test_a_broken_tracker_is_counted_and_the_others_hear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError("the service is gone")

    relay = TrackerHooks([Broken(), FilesTracker(tmp_path)])
    with caplog.at_level(logging.ERROR):
        tell(relay)
    assert relay.errors == {"Broken": 6} and caplog.text.count("the run goes on") == 1
    assert (tmp_path / "summary.json").exists()
