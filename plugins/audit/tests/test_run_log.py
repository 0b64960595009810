"""What a run writes into its log, and into that of all runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentlightning.types import StepReport
from agl_audit.log_tail import parse
from agl_audit.run_log import log_of_all_runs, run_log


def texts(path: Path) -> list[tuple[str, str]]:
    return [(line.level, line.text) for line in map(parse, path.read_text().splitlines())]


def test_steps_warnings_and_counts_are_in_both_files(tmp_path: Path) -> None:
    folder, every = tmp_path / "first", tmp_path / "logs" / "training.log"
    with run_log(folder, every) as run:
        run.start({"run_id": "first", "about": {"agent": "clerk"}})
        run.step(
            StepReport(
                run_id="first",
                policy="policy",
                policy_version=1,
                step=0,
                metrics={"reward_mean": 0.25, "rows": 64},
                seconds={"update": 1.5},
            )
        )
        logging.getLogger("agentlightning.x").warning("look\nout")
        run.finish({"total_seconds": 2.0, "accounts": {"gateway": {"refused": 2}}})
    logging.getLogger("agentlightning.x").warning("after the run")
    said = texts(folder / "training.log")
    assert said == [
        ("INFO", "started: agent clerk"),
        ("INFO", "step 1 of policy: reward 0.25, rows 64, 1.5 s"),
        ("WARNING", "agentlightning.x: look"),
        ("", "    out"),
        ("WARNING", "counted gateway: 2 × refused"),
        ("INFO", f"finished after 2.0 s: {folder}"),
    ]
    assert texts(every) == said
    assert {parse(line).run for line in every.read_text().splitlines()} == {"first", ""}


def test_a_run_that_breaks_off_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError), run_log(tmp_path, None):
        raise ValueError("no luck")
    text = (tmp_path / "training.log").read_text()
    assert "ERROR broken off: ValueError: no luck" in text and "\n    Traceback" in text
    with pytest.raises(KeyboardInterrupt), run_log(tmp_path, None):
        raise KeyboardInterrupt
    assert (tmp_path / "training.log").read_text().endswith("ERROR broken off: KeyboardInterrupt\n")


def test_a_place_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with run_log(tmp_path / "run", tmp_path / "file" / "training.log") as run:
        run.write(logging.INFO, "goes on")
    assert "no log in" in caplog.text
    assert "goes on" in (tmp_path / "run" / "training.log").read_text()


def test_where_the_log_of_all_runs_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log_of_all_runs() == Path.home() / ".agent-lightning" / "logs" / "training.log"
    monkeypatch.setenv("AGL_LOG", str(tmp_path / "a.log"))
    assert log_of_all_runs() == tmp_path / "a.log"
    assert log_of_all_runs("~/b.log") == Path.home() / "b.log"
    assert log_of_all_runs("") is None
    monkeypatch.setenv("AGL_LOG", "")
    assert log_of_all_runs() is None
