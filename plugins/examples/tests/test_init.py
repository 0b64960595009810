"""``agl init`` writes a project whose parts fit together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agl_testing import ScriptedModelServer
from typer.testing import CliRunner

from agentlightning import UsageError
from agentlightning.cli import app
from agentlightning.train.configured import load_agent, load_data
from agentlightning.train.run_file import load_config


def test_the_project_is_a_run_and_its_test_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new"
    made = CliRunner().invoke(app(["init"]), ["init", str(folder), "--json"])
    assert made.exit_code == 0 and json.loads(made.output)["folder"] == str(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    config = load_config(folder / "config.yaml")
    agent = load_agent(config)
    train = load_data(config.environment.train, config, "environment.train")
    val = load_data(config.environment.val, config, "environment.val")
    assert (len(train), len(val), config.backend.policy) == (160, 48, "tiny")
    assert agent.score(val[0], f"### ANSWER: {val[0]['answer']} ###") == 1.0  # type: ignore[attr-defined]
    scope = {"__file__": str(folder / "test_agent.py")}
    exec((folder / "test_agent.py").read_text(), scope)
    scope["test_right_answers_are_rewarded"]()  # type: ignore[operator]
    sys.modules.pop("agent", None)


def test_it_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    found = CliRunner().invoke(app(["init"]), ["init", str(tmp_path)])
    assert isinstance(found.exception, UsageError) and "is not empty" in str(found.exception)


@pytest.mark.slow
def test_ask_waits_for_the_server_and_gives_the_agent_tasks(tmp_path: Path) -> None:
    CliRunner().invoke(app(["init"]), ["init", str(tmp_path / "new")])
    with ScriptedModelServer(lambda body: "### ANSWER: 1 ###", model="served") as server:
        url = server.url
        command = [sys.executable, str(tmp_path / "new" / "ask.py"), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{url} serves served" and len(lines) == 7
    assert all(line.startswith("  ### ANSWER: 1 ###  reward ") for line in lines[2::2])
