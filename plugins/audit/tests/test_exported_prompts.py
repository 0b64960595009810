"""What a prompt search found leaves its run as text files with a card, or as one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.types import UsageError
from agl_audit.exported_prompts import export_prompts, find_prompts
from agl_audit.locations import NoSuchRun

TWO = {"writer/system": "Write {x}.", "writer:system": "Schreib {x}."}


def searched(folder: Path, prompts: dict[str, str], **more: Any) -> Path:
    """The folder of a run that ended with these prompts."""
    run = folder / "mine"
    run.mkdir()
    (run / "store.sqlite").touch()
    about = {"run_id": "mine", "about": {"agent": "clerk"}, "recipe": {"name": "apo"}}
    (run / "run.json").write_text(json.dumps(about))
    summary = {"prompts": prompts, "reward_before": 0.25, "ci_before": [0.1, 0.4], "reward_after": 0.75,
               "ci_after": None, "eval_tasks": 16, "chain": {"head": "f00d"}, **more}  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def exported(run: Path, target: Path) -> Path:
    found = find_prompts(str(run))
    assert found is not None
    return export_prompts(found, target)


def test_each_prompt_is_a_file_and_the_card_says_where_it_is_from(tmp_path: Path) -> None:
    target = exported(searched(tmp_path, TWO), tmp_path / "taken")
    assert json.loads((target / "prompts.json").read_text()) == TWO
    assert (target / "writer_system.txt").read_text() == "Write {x}."
    assert (target / "writer_system-2.txt").read_text() == "Schreib {x}."
    assert json.loads((target / "agl_origin.json").read_text()) == {
        "run": "mine", "prompts": [*TWO], "head": "f00d",
    }  # fmt: skip
    card = (target / "README.md").read_text()
    expected = [
        *("# taken", "| run | mine |", "| algorithm | apo |", "| reward after | 0.750 |", "f00d"),
        *("| reward before | 0.250, 95 % interval 0.100 to 0.400 |", "`writer_system-2.txt`"),
    ]
    for words in expected:
        assert words in card
    assert str(tmp_path) not in card


def test_one_prompt_may_be_one_file(tmp_path: Path) -> None:
    run = searched(tmp_path, {"prompt_template": "Answer: {question}"})
    assert exported(run, tmp_path / "out" / "prompt.txt").read_text() == "Answer: {question}"
    with pytest.raises(UsageError, match="exists: name a new"):
        exported(run, tmp_path / "out" / "prompt.txt")
    with pytest.raises(UsageError, match="exists: name a new"):
        exported(run, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["prompt.txt"]


def test_several_prompts_are_no_file(tmp_path: Path) -> None:
    run = searched(tmp_path, TWO)
    with pytest.raises(UsageError, match="has the prompts writer/system, writer:system: name a folder"):
        exported(run, tmp_path / "prompt.txt")
    assert not (tmp_path / "prompt.txt").exists()


def test_what_has_no_prompts(tmp_path: Path) -> None:
    assert find_prompts(str(searched(tmp_path, {}))) is None
    with pytest.raises(NoSuchRun):
        find_prompts(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("{}")
    assert find_prompts(str(tmp_path)) is None


def test_the_command_takes_the_policy_where_there_is_one(tmp_path: Path) -> None:
    run = searched(tmp_path, {"prompt_template": "Hi"})
    command = CliRunner()
    said = command.invoke(app(), ["export", str(run), str(tmp_path / "a"), "--json"], catch_exceptions=False)
    assert json.loads(said.stdout)["prompts"] == ["prompt_template"]
    (run / "policy").mkdir()
    (run / "policy" / "config.json").write_text("{}")
    said = command.invoke(app(), ["export", str(run), str(tmp_path / "b"), "--json"], catch_exceptions=False)
    assert json.loads(said.stdout)["policy"] is None and (tmp_path / "b" / "config.json").exists()
    asked = ["export", str(run), str(tmp_path / "c.txt"), "--prompts"]
    assert command.invoke(app(), asked, catch_exceptions=False).stdout.strip().endswith("c.txt")
    (run / "summary.json").write_text("{}")
    assert "has no prompts" in str(command.invoke(app(), asked).exception)
