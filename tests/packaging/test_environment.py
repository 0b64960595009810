"""scripts/environment: what an environment is made of, and what it must not hold."""

from __future__ import annotations

import importlib.util
import subprocess
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "environment"
COMMON = ["pytest==9.2.0"]


@pytest.fixture
def environment() -> ModuleType:
    loader = SourceFileLoader("environment", str(SCRIPT))
    spec = importlib.util.spec_from_loader("environment", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def pips(environment, monkeypatch):
    """The calls of pip, and what is then installed."""
    calls: list[list[str]] = []
    found = ["torch"]

    def pip(python, *arguments):
        calls.append(list(arguments))
        return subprocess.CompletedProcess(arguments, 0)

    def installed(command, **how):
        return subprocess.CompletedProcess(command, 0, stdout=" ".join(found))

    monkeypatch.setattr(environment, "pip", pip)
    monkeypatch.setattr(environment.subprocess, "run", installed)
    return calls, found


def test_every_definition_can_be_read_and_is_exactly_pinned(environment):
    for name, defined in environment.definitions().items():
        assert defined.requires and all("==" in word for word in defined.requires), name


def test_an_environments_own_pin_stands_in_place_of_the_common_one(environment):
    made = environment.definition({"requires": ["a[x]==2", "b==1"]}, ["A==1", "ab==1"])
    assert made.requires == ["ab==1", "a[x]==2", "b==1"]


def test_an_environments_own_pin_stands_in_place_of_a_constraint(environment, monkeypatch):
    held = []

    def pip(python, *arguments):
        held.append(Path(arguments[arguments.index("-c") + 1]).read_text())
        return subprocess.CompletedProcess(arguments, 0)

    monkeypatch.setattr(environment, "pip", pip)
    monkeypatch.setattr(environment, "constraints", lambda: ["# why\n", "a==1\n", "b==1\n"])
    empty = subprocess.CompletedProcess([], 0, stdout="")
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **how: empty)
    environment.install(Path("python"), environment.definition({"requires": ["B==2"], "alone": True}, []))
    assert held == ["# why\na==1\n"]


def test_one_that_is_alone_has_neither_the_suite_nor_what_is_common(environment, pips):
    calls, _ = pips
    beside = environment.definition({"requires": ["a==1"]}, COMMON)
    alone = environment.definition({"requires": ["a==1"], "alone": True}, COMMON)
    assert (beside.requires, alone.requires) == (["pytest==9.2.0", "a==1"], ["a==1"])
    for defined in (beside, alone):
        environment.install(Path("python"), defined)
    assert ["-e" in call for call in calls] == [False, True, False, False]
    built, suite, together, single = calls
    assert built == ["install", environment.BUILDS] and "--no-deps" in suite
    assert together[1:3] == ["pytest==9.2.0", "a==1"] and any(one.startswith("torch") for one in together)
    assert not any(one.startswith("agl-") for one in together), "an index would be asked for the suite"
    assert single[1:3] == ["a==1", "-c"]
    assert environment.state(alone)["manifests"] == environment.digest(), (
        "the suite's manifests are not its own"
    )


def test_what_is_bare_is_installed_without_what_it_asks_for(environment, pips):
    calls, _ = pips
    environment.install(
        Path("python"), environment.definition({"alone": True, "requires": [], "bare": ["a==1"]}, [])
    )
    assert ["install", "--no-deps", "a==1"] in calls


def test_what_is_allowed_and_removed_makes_another_environment(environment):
    plain = environment.definition({"requires": ["a==1"]}, [])
    others = [
        environment.definition({"requires": ["a==1"], name: value}, [])
        for name, value in (("alone", True), ("allow", ["triton"]), ("remove", ["triton"]))
    ]
    assert plain.words() == ["a==1"]
    assert len({environment.state(one)["definition"] for one in (plain, *others)}) == 4


def test_packages_for_gpus_are_refused_unless_they_are_allowed(environment, pips):
    _, found = pips
    found += ["triton", "nvidia-cublas"]
    allowing = environment.definition({"requires": ["a==1"], "allow": ["triton"]}, [])
    with pytest.raises(SystemExit, match=r"must not be here: nvidia-cublas$"):
        environment.install(Path("python"), allowing)
    found.remove("nvidia-cublas")
    environment.install(Path("python"), allowing)
    with pytest.raises(SystemExit, match="triton"):
        environment.install(Path("python"), allowing._replace(allow=()))


def test_what_must_not_stay_is_removed_after_the_installation(environment, pips):
    calls, _ = pips
    defined = environment.definition({"requires": ["a==1"], "alone": True, "remove": ["b", "c"]}, [])
    environment.install(Path("python"), defined)
    assert [call[0] for call in calls] == ["install", "uninstall"] and calls[1][-2:] == ["b", "c"]
