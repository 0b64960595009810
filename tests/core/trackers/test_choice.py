"""Which trackers a run has, with which options, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import PluginError, build
from agentlightning.specs import TrackerSpec
from agentlightning.trackers import TrackerHooks
from agentlightning.trackers.choice import open_trackers, tracker_choices
from agentlightning.types import UsageError
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
    assert list(default) == ["files", "console"]
    assert tracker_choices(KNOWN, ["default", {"watching": {"seconds": 2}}]) == {
        **default,
        "watching": {"seconds": 2},
    }
    assert tracker_choices(KNOWN, ["default", "files"]) == default and tracker_choices(KNOWN, []) == {}


def test_a_tracker_gets_its_options_checked() -> None:
    plain, given = opened(["watching"])[0], opened([{"watching": {"folder": "x", "seconds": 0.5}}])[0]
    assert plain.options == Options() and given.options == Options(folder="x", seconds=0.5)
    assert opened([{"watching": None}])[0].options == Options() and given.folder == Path("run")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [{"watching": {"folde": "x"}}],
            "trackers.watching.folde: it has no such option. Did you mean 'folder'?",
        ),
        ([{"watching": {"zzz": 1}}], "Known here: folder, seconds"),
        ([{"watching": {"seconds": 0}}], "trackers.watching.seconds: Input should be greater than 0, not 0"),
        ([{"files": {"x": 1}}], "trackers.files: it has no options, and x is given"),
        (["files", {"files": None}], "'files' stands there twice"),
        ([{"default": {"x": 1}}], "trackers.default: it stands for files, console"),
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


class Slow:
    own_thread = True

    def __init__(self) -> None:
        self.may_go_on, self.seen = threading.Event(), []

    def start(self, run: Any) -> None:
        self.may_go_on.wait()
        self.seen.append(("start", threading.current_thread().name))

    def step(self, report: Any) -> None:
        raise OSError("the service is gone")

    def failed(self, error: BaseException) -> None:
        self.seen.append(("failed", str(error)))

    def close(self) -> None:
        self.seen.append(("close", ""))


def test_a_tracker_on_a_thread_of_its_own_is_called_in_order_and_its_errors_are_counted() -> None:
    slow = Slow()
    hooks = TrackerHooks([slow])
    hooks.agl_run_started({})
    hooks.agl_policy_updated(None)
    hooks.agl_run_failed(RuntimeError("no memory"))
    assert slow.seen == [] and hooks.errors == {}
    slow.may_go_on.set()
    hooks.close()
    assert slow.seen == [("start", "tracker Slow"), ("failed", "no memory"), ("close", "")]
    assert hooks.errors == {"Slow": 1}


def test_a_tracker_that_never_answers_is_left_behind_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    hooks = TrackerHooks([slow], patience=0.05)
    hooks.agl_run_started({})
    hooks.agl_policy_updated(None)
    hooks.close()
    assert hooks.errors["Slow"] >= 2 and "did not end within 0.05 s" in caplog.text
    slow.may_go_on.set()
