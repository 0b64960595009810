"""The page of the first hour: its commands are what ``make first-hour`` runs, its answers are real ones."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-hour.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("first_hour", ROOT / "scripts" / "first_hour.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "first_hour", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("install_lines", None)


def test_the_page_goes_the_whole_way_and_each_block_has_its_answer(script: ModuleType) -> None:
    commands = [line for block in script.blocks(PAGE.read_text()) for line in block]
    typed = [words[1] for line in commands if (words := line.split())[0] == "agl"]
    order = ["doctor", "init", "doctor", "train", "eval", "runs", "rollouts", "explain", "export", "serve"]
    assert [word for word in typed if not word.startswith("-")] == order
    assert commands[0].startswith("make ") and any(line.startswith("pip install") for line in commands)
    assert commands[-2].startswith("python ask.py http") and not any("curl" in line for line in commands)
    said = [block["said"] for block in script.BLOCK.finditer(PAGE.read_text())]
    assert all(said) and "/tmp/" not in PAGE.read_text() and "WARNING: Location" not in PAGE.read_text()


def test_the_page_installs_the_wheels_of_this_checkout(script: ModuleType) -> None:
    for page in (PAGE, PAGE.with_suffix(".zh.md")):
        assert script.listed(page.read_text()) == page.read_text(), "run scripts/first_hour.py --write"


def test_a_new_plugin_is_installed_and_one_that_stands_apart_is_not(
    script: ModuleType, tmp_path: Path
) -> None:
    for name in ("local", "new-one", "verl"):
        (tmp_path / "plugins" / name).mkdir(parents=True)
        (tmp_path / "plugins" / name / "pyproject.toml").touch()
    said = script.listed("pip install dist/agl_{core,local}-*.whl openai", tmp_path)
    assert said == "pip install dist/agl_{core,local,new_one}-*.whl openai"
    here = {place.parent.name for place in ROOT.glob("plugins/*/pyproject.toml")}
    assert here >= script.APART and "local" not in script.APART


def test_a_block_without_a_place_for_its_answer_is_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="no block ```text"):
        script.blocks("```sh\nls\n```\n\nprose\n\n```text\n```\n")


def test_lines_share_one_shell_and_the_first_failure_ends_the_run(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "```sh\nmkdir a\ncd a\npwd\n```\n\n```text\n```\n\n```sh\nfalse\necho never\n```\n\n```text\n```\n"
    done = script.run(page, tmp_path)
    assert [[step.status for step in block] for block in done] == [[0, 0, 0], [1]]
    assert done[0][2].said == f"{tmp_path}/a\n"
    assert "never" not in capsys.readouterr().out
    assert [step.typed for step in script.failures(done)] == ["false"]


def test_a_command_that_ends_the_shell_is_a_failure(script: ModuleType, tmp_path: Path) -> None:
    done = script.run("```sh\nexit 0\n```\n\n```text\n```\n", tmp_path)
    assert done[0][0].status is None and next(script.failures(done)).typed == "exit 0"


def test_what_was_left_running_ends_with_the_shell(script: ModuleType, tmp_path: Path) -> None:
    done = script.run("```sh\nsleep 600 &\necho $!\n```\n\n```text\n```\n", tmp_path)
    state = Path("/proc") / done[0][1].said.strip() / "stat"
    for _ in range(1000):  # it was told to end; init may take a moment to see it gone
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("still running")


def test_answers_are_written_without_places_and_shortened(script: ModuleType, tmp_path: Path) -> None:
    page = "before\n```sh\npwd\n```\n\n```text\nold\n```\nafter\n"
    said = (
        f"{tmp_path}/x\n\x1b[1mbold\x1b[0m   \nWARNING: Location 'file:///here' is ignored\n" + "line\n" * 50
    )
    wide = "w" * 700
    new = script.written(page, [[script.Step("pwd", said + wide, 0)]], tmp_path)
    lines = new.split("```text\n")[1].split("```")[0].splitlines()
    assert lines[:2] == ["~/x", "bold"] and len(lines) == script.HEAD + script.TAIL + 1
    assert lines[script.HEAD] == "… 23 lines" and len(lines[-1]) == script.WIDE
    assert new.startswith("before\n```sh\npwd\n```") and new.endswith("```\nafter\n")
