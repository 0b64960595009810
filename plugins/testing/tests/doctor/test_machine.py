"""What the doctor says of a machine, its packages and a configuration, each judged from made-up facts."""

from __future__ import annotations

import os
import socket
import types
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from agl_testing.doctor.checks import environment, packages
from agl_testing.doctor.checks.configuration import datasets, id_clashes
from agl_testing.doctor.checks.environment import check_environment, nearest_existing
from agl_testing.doctor.checks.packages import check_packages, check_plugins, check_versions, split
from agl_testing.doctor.findings import Findings, ProbeSize
from agl_testing.doctor.report import Notes, Report, failure

from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import Plugins, build
from agentlightning.specs import AdapterSpec, DriverSpec
from agentlightning.types import UsageError


def findings(folder: Path, plugins: Plugins | None = None) -> Findings:
    return Findings(None, ProbeSize(), folder, AsyncExitStack(), plugins=plugins)


# -------------------------------------------------------------------------------------------- environment
async def test_this_machine_is_described(tmp_path: Path) -> None:
    check = await check_environment(findings(tmp_path))
    assert check.status == "warn" and "no driver is installed" in [check.title, *check.detail]  # off in tests
    assert any(line.startswith("Python 3.") for line in check.detail) and check.data["cores"] >= 1
    assert any("free on the disk" in line for line in check.detail)


@pytest.mark.parametrize(
    ("look", "status", "problem"),
    [
        (lambda notes: environment._memory(notes, 10**6), "warn", "only 1.0 MB of memory free"),
        (lambda notes: environment._load(notes, 9.6, 2), "warn", "this machine is busy: load 9.6 on 2 cores"),
        (lambda notes: environment._load(notes, 2.0, 2), "ok", None),
        (lambda notes: environment._clock(notes, 3600.0), "fail", "the clock says 1970-01-01"),
        (lambda notes: environment._clock(notes, 2e9), "ok", None),
    ],
)
def test_what_a_machine_lacks_is_said(look: Any, status: str, problem: str | None) -> None:
    notes = Notes()
    look(notes)
    assert notes.status == status and notes.problems == ([problem] if problem else [])
    assert bool(notes.advice) == bool(problem)


def test_a_full_disk_few_files_and_no_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import resource

    notes = Notes()
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=5.0))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise OSError("not permitted")

    monkeypatch.setattr(socket, "create_server", refused)
    monkeypatch.setattr(environment.tempfile, "TemporaryFile", refused)
    environment._disk(notes, tmp_path)
    environment._files(notes)
    environment._loopback(notes)
    environment._temporary(notes)
    check = notes.check("environment", "a machine")
    said = "\n".join([check.title, *check.detail])
    assert check.status == "fail" and len(check.advice) == 4
    assert "127.0.0.1 cannot be reached: not permitted" in said and "may open only 256 files" in said
    assert "the temporary folder cannot be written" in said and "only 5 B free" in said


def with_driver(facts: Any) -> Plugins:
    class Plugin:
        @hookimpl
        def agl_drivers(self) -> list[DriverSpec]:
            return [DriverSpec("small", lambda *_: None, environment_info=facts)]  # type: ignore[arg-type,return-value]

    return build([Plugin()], discover=False)


async def test_a_driver_tells_what_it_computes_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        environment, "load_plugins", lambda: with_driver(lambda options: {"device": "abacus"})
    )
    check = await check_environment(findings(tmp_path))
    assert "driver small: device abacus" in check.detail

    def broken(options: Mapping[str, Any]) -> dict[str, str]:
        raise UsageError("no beads")

    monkeypatch.setattr(environment, "load_plugins", lambda: with_driver(broken))
    check = await check_environment(findings(tmp_path))
    assert check.status == "warn" and "driver small: no beads" in [check.title, *check.detail]


@pytest.mark.plugins
def test_the_local_driver_names_its_device_and_refuses_options_it_does_not_have() -> None:
    pytest.importorskip("torch")
    from agentlightning.plugins.manager import load

    spec = load().drivers["local"]
    assert spec.environment_info is not None
    assert spec.environment_info({"threads": 1})["device"] == "cpu"
    with pytest.raises(UsageError, match="no option 'thread'"):
        spec.environment_info({"thread": 1})


def test_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == nearest_existing(tmp_path) == tmp_path


# -------------------------------------------------------------------------------------------- packages
async def test_a_broken_plugin_is_named_with_its_error(tmp_path: Path) -> None:
    plugins = build(discover=False)
    plugins.broken["abacus"] = "ImportError: libcuda.so.1"
    check = await check_plugins(findings(tmp_path, plugins))
    assert check.status == "warn" and check.advice
    assert check.title == "plugin abacus (unknown version) cannot be loaded: ImportError: libcuda.so.1"


@pytest.mark.parametrize(
    ("found", "requirement", "problem"),
    [
        ("0.7.5", "autogen-agentchat >= 0.7.5, < 0.8", None),
        ("0.8.0", "autogen-agentchat >= 0.7.5, < 0.8", "autogen-agentchat 0.8.0 is outside the tested range"),
        (None, "autogen-agentchat >= 0.7.5, < 0.8", None),
        ("1", "autogen agentchat", "is no requirement"),
    ],
)
def test_versions_are_compared_with_the_tested_range(
    monkeypatch: pytest.MonkeyPatch, found: str | None, requirement: str, problem: str | None
) -> None:
    monkeypatch.setattr(packages, "installed", lambda name: found)
    notes = Notes()
    check_versions(notes, "adapter autogen", [requirement], "without agent names")
    assert (notes.status == "warn" and problem in notes.problems[0]) if problem else notes.status == "ok"


def test_a_range_belongs_to_its_package() -> None:
    assert split("a >= 1, < 2, b[x] == 3,!=4") == ["a >= 1, < 2", "b[x] == 3, !=4"] and split("") == []


async def test_an_adapter_whose_framework_is_too_new_and_a_foreign_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentlightning.plugins.package_conflict import PackageConflict

    class Plugin:
        @hookimpl
        def agl_adapters(self) -> list[AdapterSpec]:
            return [AdapterSpec("old", "pluggy", lambda: None, requires="pluggy < 0.1")]

    plugins = build([Plugin()], discover=False)
    monkeypatch.setattr(
        packages.package_conflict,
        "find_conflict",
        lambda: PackageConflict("0.3.0", Path("site"), installed=True),
    )
    check = await check_packages(findings(tmp_path, plugins))
    assert check.status == "fail" and check.title.startswith("another package called 'agentlightning'")
    assert any("pip uninstall -y agentlightning" in line for line in check.advice)
    assert any(line.startswith("adapter old: pluggy") and "<0.1" in line for line in check.detail)


# ------------------------------------------------------------------------------------------ datasets
def test_datasets_are_counted_and_leaks_found() -> None:
    train = [{"id": n, "q": f"{n} + 1"} for n in range(40)]
    val = [{"id": 100 + n, "q": f"{n} - 1"} for n in range(40)]
    notes = Notes()
    data = datasets(notes, train, val, steps=3)
    assert notes.status == "ok" and data == {"train": 40, "val": 40, "leaked": 0, "doubles": 0, "clashes": 0}
    notes = Notes()
    data = datasets(notes, [*train, {"id": 41, "q": "0 + 1"}], [*val, {"id": 7, "q": "5 + 1"}], steps=3)
    assert data["leaked"] == 1 and data["doubles"] == 1 and notes.status == "warn"
    assert notes.problems == ["1 held-out task also to train on: the evaluation will flatter"]


@pytest.mark.parametrize(
    ("train", "val", "steps", "status", "problem"),
    [
        ([], [1] * 40, 3, "fail", "there are no training tasks"),
        ([1], [], 3, "warn", "there are no held-out tasks"),
        ([1], [2, 3, 4, 5], 3, "warn", "only 4 held-out tasks: differences below ±0.49 cannot be seen"),
        ([{"id": 1, "q": 1}, {"id": 1, "q": 2}], [*range(40)], 3, "warn", "1 task id of several tasks each"),
    ],
)
def test_datasets_that_will_not_do(
    train: list[Any], val: list[Any], steps: int, status: str, problem: str
) -> None:
    notes = Notes()
    datasets(notes, train, val, steps)
    assert notes.status == status and any(p.startswith(problem) for p in notes.problems), notes.problems


def test_equal_tasks_may_share_their_id() -> None:
    assert id_clashes([{"id": 1, "q": 1}, {"id": 1, "q": 1}, {"q": 3}]) == []


# ------------------------------------------------------------------------------------------ the report
def test_the_first_failure_is_the_verdict() -> None:
    notes = Notes()
    notes.warn("slow", "Wait.")
    notes.fail("broken", "Mend it.")
    check = notes.check("engine", "fine")
    assert (check.status, check.title, check.detail) == ("fail", "broken", ["slow", "fine"])
    assert Report(ok=False, checks=[check]).verdict == "Do not train yet: broken"
    warned = Notes()
    warned.warn("slow", "Wait.")
    report = Report(ok=True, checks=[warned.check("store", "fine"), Notes().check("reward", "fine")])
    assert report.verdict == "Ready to train; look at store first"
    assert Report(ok=True, checks=[Notes().check("environment", "fine")]).verdict == "This machine is ready."


def test_an_error_that_ends_a_check_is_its_result() -> None:
    assert failure("x", UsageError("a\nb")).detail == ["b"]
    try:
        os.fspath(3)  # type: ignore[call-overload]
    except TypeError as error:
        check = failure("x", error)
    assert check.title.startswith("TypeError: ") and check.detail[-1].startswith("at test_machine.py:")
