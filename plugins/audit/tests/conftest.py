"""A finished run, and the commands that look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from contract.runs import make_run

from agentlightning import cli

Agl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def agl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Agl:
    """Runs a command as a person does; (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["agl", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def run_with_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run ``mine`` with a policy and an empty store, in ``runs/`` of the working directory."""
    run = tmp_path / "runs" / "mine"
    (run / "policy").mkdir(parents=True)
    (run / "policy" / "config.json").write_text("{}")
    (run / "store.sqlite").touch()
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return asyncio.run(make_run(tmp_path / "runs"))
