"""``agl sft``: the folder it writes, what it refuses, and what an interrupted run leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentlightning.plugins.manager import load as load_plugins
from agentlightning.types import UsageError
from agl_local.policy.folder import fingerprint, load_policy
from agl_local.sft.command import register
from plugins.local.tests.driver_fixtures import saved_policy
from plugins.local.tests.sft.test_chats import chat

ROWS = [chat(str(i), "yes" if i % 2 else "no") for i in range(6)]


@pytest.fixture
def start(tmp_path, monkeypatch) -> Path:
    """The policy to start from; the working directory is its parent."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.jsonl", ROWS)
    return saved_policy(tmp_path / "start")


def write(file: Path, rows: list[object]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def agl_sft(*line: str) -> list[str]:
    """Run the command on the working directory's files; return the lines of stdout, or raise its error."""
    app = typer.Typer()
    register(app)
    given = ["--policy", "start", "--data", "train.jsonl", "--output", "out/tuned", "--threads", "1"]
    result = CliRunner().invoke(app, [*given, "--batch-size", "2", "--lr", "1e-2", *line])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_writes_a_policy_with_its_card(start, tmp_path) -> None:
    (folder,) = agl_sft("--epochs", "2")
    assert Path(folder) == tmp_path / "out/tuned"
    before, after = load_policy(start), load_policy(folder)
    assert fingerprint(before.model) != fingerprint(after.model)
    assert after.tokenizer.template is not None and after.tokenizer.eos_ids == before.tokenizer.eos_ids
    card = (Path(folder) / "README.md").read_text()
    for fact in ('base_model: "start"', "train.jsonl", "| epochs | 2 |", "| steps | 6 |"):
        assert fact in card
    assert fingerprint(before.model) in card
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tuned"]


def test_the_summary_repeats_with_its_seed(start) -> None:
    write(Path("val.jsonl"), ROWS[:2])
    summaries = [
        json.loads(agl_sft("--json", "--val", "val.jsonl", "--epochs", "1", "--seed", seed)[-1])
        for seed in ("1", "1", "2")
    ]
    for name in ("loss", "val_losses", "parent_sha256", "data_sha256", "chats", "too_long", "val_chats"):
        assert summaries[0][name] == summaries[1][name]
    assert summaries[0]["loss"] != summaries[2]["loss"]
    assert summaries[0]["peak_mb"] > 0 and summaries[0]["steps"] == 3


def test_rows_of_a_function(start, tmp_path, monkeypatch) -> None:
    (tmp_path / "rows_for_sft.py").write_text(
        "def some():\n    return [{'messages': [{'role': 'user', 'content': 'a'},"
        " {'role': 'assistant', 'content': 'b'}]}]\n"
        "def none():\n    raise OSError('the disk is gone')\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    summary = json.loads(agl_sft("--data", "rows_for_sft:some", "--json", "--epochs", "1")[-1])
    assert (summary["data"], summary["chats"]) == ("rows_for_sft:some", 1)
    for target, problem in (
        ("rows_for_sft:none", "raised OSError: the disk is gone"),
        ("rows_for_sft:more", "neither a file nor module:function: .*'more'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
    ):
        with pytest.raises(UsageError, match=problem):
            agl_sft("--data", target)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["--data", "bad.jsonl"], "bad.jsonl:2: no assistant message"),
        (["--val", "bad.jsonl"], "bad.jsonl:2"),
        (["--policy", "nowhere"], "no model is called 'nowhere'"),
        (["--output", "kept"], "which an export would delete"),
        (["--output", "train.jsonl"], "is a file"),
        (["--lr", "0"], "lr must be positive"),
        (["--freeze", "nothing"], "'nothing' matches no parameter"),
        (["--max-len", "5"], "all 6 chats have more than 5 tokens"),
    ],
)
def test_what_is_refused_leaves_no_folder(start, tmp_path, line: list[str], problem: str) -> None:
    write(tmp_path / "bad.jsonl", [ROWS[0], chat("only a question")])
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=problem):
        agl_sft(*line)
    assert not (tmp_path / "out").exists() and (tmp_path / "kept/notes.txt").read_text() == "mine"


def test_an_interrupted_run_leaves_the_earlier_folder(start, tmp_path, monkeypatch) -> None:
    agl_sft("--epochs", "1")
    before = fingerprint(load_policy(tmp_path / "out/tuned").model)

    with monkeypatch.context() as patch, pytest.raises(BaseException):  # noqa: B017
        patch.setattr("agl_local.policy.folder.save_file", interrupt)
        agl_sft("--epochs", "2")
    assert fingerprint(load_policy(tmp_path / "out/tuned").model) == before
    (tmp_path / "out/.unfinished-tuned-0123").mkdir()  # of a run that was killed while it wrote
    (tmp_path / "out/.unfinished-other-0123").mkdir()  # of a run that may still write
    agl_sft("--epochs", "1")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [".unfinished-other-0123", "tuned"]


def test_nothing_is_written_before_training_is_done(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("agl_local.sft.finetune.train_sft", interrupt)
    with pytest.raises(BaseException):  # noqa: B017
        agl_sft()
    assert not (tmp_path / "out").exists()


def interrupt(*given: object, **more: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.plugins
def test_the_command_is_registered() -> None:
    assert load_plugins().commands["sft"].about == "fine-tune a policy on chats"
