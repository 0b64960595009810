"""The place of fetched policies, and the commands over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agl_local.command import register


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """The folder of fetched policies."""
    monkeypatch.setenv("AGL_CACHE", str(tmp_path / "cache"))
    for name in ("NO_PROXY", "no_proxy"):  # servers of these tests are here
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache/policies"


@pytest.fixture
def agl(place):
    app = typer.Typer()
    register(app)

    def run(*line: str) -> Any:
        return CliRunner().invoke(app, ["policy", *line])

    return run
