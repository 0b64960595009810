"""Commands as users call them, with the whole suite installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from core.cli.test_cli import Command, agl as agl, agl_process

CONFIG = Path(__file__).parents[2] / "examples" / "calc_x" / "cpu.yaml"


@pytest.mark.plugins
def test_eval_prints_one_json_object_last(agl: Command, tmp_path: Path) -> None:
    done = agl(
        "eval",
        "-c",
        str(CONFIG),
        "--limit",
        "4",
        "--set",
        f"output={tmp_path}",
        "--set",
        "environment.headroom={}",
        "--set",
        "backend.options.engine=thread",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["n"] == 4 and result["calls_made"] == result["calls_exact"] > 0 and result["failed"] == 0
    assert "evaluated eval" in done.stderr
    listed = json.loads(agl("runs", str(tmp_path), "--json").stdout)
    assert (listed["run"], listed["status"]) == (result["run_id"], "finished")
    assert listed["evaluated"] == result["reward"]
    log = (tmp_path / result["run_id"] / "training.log").read_text()
    assert "INFO evaluated eval: reward" in log and "INFO finished after" in log
    assert (Path.home() / ".agent-lightning" / "logs" / "training.log").read_text().endswith(log)


@pytest.mark.slow
def test_real_problems_run_through_the_same_command(tmp_path: Path) -> None:
    sets = ("environment.val={target: calc_x.datasets:load, args: {spec: svamp}}", "environment.headroom={}")
    done = agl_process(
        "eval",
        "-c",
        str(CONFIG),
        "--limit",
        "3",
        "--set",
        f"output={tmp_path}",
        *(f"--set={s}" for s in sets),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["n"] == 3 and result["calls_made"] == result["calls_exact"] > 0
