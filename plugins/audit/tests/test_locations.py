"""A run is found by what a person writes, and what is not found comes with what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.runs import RUN, make_run, plugins
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.specs import PolicySpec
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError
from agl_audit.commands import evaluate
from agl_audit.commands.evaluate import _folder
from agl_audit.locations import NoSuchRun, RunLocation, find_run, match_name, stores
from agl_audit.run import open_run
from agl_audit.run_list import list_runs
from agl_audit.targets import open_target

OTHER = "20260103-000000-other-s2"


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two runs."""
    await make_run(tmp_path / "runs", rewards={0: [1.0, 0.0]})
    await make_run(tmp_path / "runs", name=OTHER, rewards={0: [1.0]}, finished=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "what", [RUN, "20260102", f"runs/{RUN}", f"runs/{RUN}/", f"runs/{RUN}/store.sqlite", "{here}/runs/" + RUN]
)
async def test_ways_to_name_a_run(here: Path, what: str) -> None:
    async with open_run(what.format(here=here), plugins=plugins()) as run:
        assert run.run_id == RUN and run.folder is not None and run.folder.name == RUN


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("2026", f"'2026' is the beginning of 2 runs in runs/: {OTHER}, {RUN}; or give the run's folder"),
        ("1999", f"runs/ holds no run '1999': {OTHER}, {RUN}; or give the run's folder, or the store that"),
        ("runs", f"runs holds 2 runs: name one: runs/{OTHER}, runs/{RUN}"),
        ("bare", "bare holds no store.sqlite: give the run's id or folder, or the store that holds it"),
        ("storeless", "runs/storeless holds no store.sqlite: give the run's id or folder"),
    ],
)
def test_what_cannot_be_found_comes_with_what_there_is(here: Path, what: str, message: str) -> None:
    (here / "bare").mkdir()
    (here / "runs" / "storeless").mkdir()
    with pytest.raises(NoSuchRun) as error:
        find_run(what)
    assert message in str(error.value)
    assert "--store" not in str(error.value)  # `agl export`, `serve`, `eval` and `logs` have no such option
    assert not list((here / "bare").iterdir())  # looking makes nothing


def test_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoSuchRun, match=r"there is no run 'x': .*runs holds none"):
        find_run("x")
    with pytest.raises(NoSuchRun, match="there is no such store"):
        find_run("x", "none.sqlite")
    with pytest.raises(NoSuchRun, match="there is no such folder, file or store"):
        stores("nowhere")
    assert stores() == []


async def test_a_store_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = await make_run(tmp_path / "shared", rewards={0: [1.0]})
    store = SQLiteStore(folder / "store.sqlite")
    await store.add_run("another", {})
    await store.close()
    place = str(folder / "store.sqlite")
    with pytest.raises(NoSuchRun, match="holds 2 runs: name one with --run"):
        async with open_run(place, plugins=plugins()):
            pass
    async with open_run(place, plugins=plugins(), run="anoth") as run:
        assert run.run_id == "another" and run.folder is None
    async with open_run(RUN, place, plugins()) as run:
        assert run.run_id == RUN
    monkeypatch.setenv("AGL_STORAGE", place)
    async with open_run(RUN[:8], plugins=plugins()) as run:
        assert run.run_id == RUN
    async with open_target("ro-0-0", plugins=plugins()) as (run, target):
        assert run.run_id == RUN and target.rollout.rollout_id == "ro-0-0"


def test_choose() -> None:
    assert match_name(["a"], None, "here") == "a" and match_name(["ab", "a"], "a", "here") == "a"
    with pytest.raises(NoSuchRun, match=r"here holds no run$"):
        match_name([], None, "here")


async def test_the_list_of_runs(here: Path) -> None:
    broken = here / "runs" / "20250101-broken"
    broken.mkdir()
    (broken / "store.sqlite").write_bytes(b"no database at all, but long enough to be read as one" * 40)
    lines = {line.run: line for line in await list_runs(stores(), plugins())}
    done = lines[RUN]
    assert (done.agent, done.recipe, done.steps, done.planned) == ("agent · solve", "grpo", 1, 1)
    assert (done.before, done.after, done.status, done.seconds) == (0.25, 0.75, "finished", 12.5)
    off = lines[OTHER]
    assert (off.status, off.training, off.before, off.seconds) == ("broken off", 1.0, None, 1.5)
    bad = lines["20250101-broken"]
    assert bad.status == "unreadable" and bad.reason and "store" in bad.reason
    assert list(lines)[-1] == "20250101-broken"


async def test_a_store_in_use_is_read_through_its_owner(here: Path) -> None:
    """Another process owns the file: the list is read from there, and the run is running."""
    import subprocess
    import sys

    code = (
        "import asyncio, sys\n"
        "from agentlightning.plugins.stores import open_store\n"
        "async def main():\n"
        "    store = open_store(sys.argv[1])\n"
        "    await store.query_runs()\n"
        "    print('open', flush=True)\n"
        "    await asyncio.to_thread(sys.stdin.read)\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    file = here / "runs" / OTHER / "store.sqlite"
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "open\n"
        lines = {line.run: line.status for line in await list_runs(stores(), plugins())}
        assert lines == {RUN: "finished", OTHER: "running"}
    finally:
        owner.communicate("")
    assert owner.returncode == 0


async def test_an_unreadable_store_does_not_hide_a_rollout_of_another(here: Path) -> None:
    first = here / "runs" / "20270101-broken"
    first.mkdir()
    (first / "store.sqlite").write_bytes(b"no database at all, but long enough to be read as one" * 40)
    async with open_target("ro-0-0", plugins=plugins()) as (run, _):
        assert run.run_id == OTHER
    with pytest.raises(UsageError, match=r"could not be read: .*20270101-broken"):
        async with open_target("nothing", plugins=plugins()):
            pass


def test_places_of_urls() -> None:
    assert find_run("http://localhost:1") == RunLocation("http://localhost:1")
    assert stores("http://localhost:1") == [RunLocation("http://localhost:1")]


def test_eval_takes_a_run(run_with_policy: Path) -> None:
    assert _folder("mine") == _folder("runs/mine") == str((run_with_policy / "policy").resolve())
    with pytest.raises(UsageError, match=r"no such folder.*and as a run: .*'yours'"):
        _folder("yours")


def test_eval_takes_the_policy_of_that_name_from_a_run_of_several(run_with_policy: Path) -> None:
    folder = run_with_policy / "policy"
    for name in ("writer", "checker"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    (folder / "config.json").unlink()
    for what in ("mine", "runs/mine"):
        for name in ("writer", "checker"):
            assert _folder(what, name) == str((folder / name).resolve())
        for name in ("", "other"):
            with pytest.raises(UsageError, match=r"checker, writer: give .* such as .*policy/checker"):
                _folder(what, name)


def test_eval_says_which_policies_the_file_names_when_one_is_given_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp-w").mkdir()
    (tmp_path / "ev.yaml").write_text(
        "agent: {target: a, policies: {w: writer, c: checker}}\n"
        "backend: {policy: {writer: {path: p}, checker: {path: p}}}"
    )
    said = "--policy exp-w: ev.yaml names the policies writer, checker: give --policy writer=exp-w"
    refused = CliRunner().invoke(app(["eval"]), ["eval", "-c", "ev.yaml", "--policy", "exp-w"])
    assert isinstance(refused.exception, ConfigError) and str(refused.exception) == said
    wrong = ["eval", "-c", "ev.yaml", "--policy", "exp-w", "--set", "training.step=1"]
    assert "training.step: there is no such key" in str(CliRunner().invoke(app(["eval"]), wrong).exception)


def test_eval_takes_a_folder_or_the_name_of_a_pretrained_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pretrained:
        @hookimpl
        def agl_policies(self) -> list[PolicySpec]:
            return [PolicySpec("tiny", lambda: tmp_path / "cache")]

    monkeypatch.setattr(evaluate, "load_plugins", lambda: build([Pretrained()], discover=False))
    monkeypatch.chdir(tmp_path)
    assert _folder("tiny") == str(tmp_path / "cache")
    (tmp_path / "tiny").mkdir()  # a folder of that name comes first
    assert _folder("tiny") == str(tmp_path / "tiny")
    with pytest.raises(UsageError, match="give hub:Qwen/Q-1"):
        _folder("Qwen/Q-1")
    for path in (
        "tiny/step-7",
        "models/Q-1",
    ):  # tiny is a folder, models nobody's name
        with pytest.raises(UsageError, match="no such folder") as caught:
            _folder(path)
        assert "hub:" not in str(caught.value)
