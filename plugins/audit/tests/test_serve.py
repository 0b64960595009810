"""``agl serve``: which folder is served, and by which engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentlightning.types import UsageError
from agl_audit.commands import serve as serve_command
from agl_audit.locations import NoSuchRun

POLICY = Path(__file__).parents[3] / "examples" / "quickstart" / "policy"


def invoke(*line: str) -> object:
    app = typer.Typer()
    serve_command.register(app)
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, ["serve", *line], catch_exceptions=False)


def test_a_run_is_served_by_its_policy_folder(run_with_policy: Path) -> None:
    assert serve_command.model_folder("mine") == run_with_policy / "policy"
    with pytest.raises(NoSuchRun):
        serve_command.model_folder("yours")


def test_vllm_gets_folder_name_address_and_further_options(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[list[str]] = []

    def execv(program: str, line: list[str]) -> None:
        lines.append(line)
        raise SystemExit(0)

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(os, "execv", execv)
    invoke(str(POLICY), "--engine", "vllm", "--name", "calc", "--port", "9", "--max-model-len", "512")
    address = ["--host", "127.0.0.1", "--port", "9", "--max-model-len", "512"]
    assert lines == [["/bin/vllm", "serve", str(POLICY), "--served-model-name", "calc", *address]]


def test_a_missing_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UsageError, match="vllm is not on PATH: install it"):
        invoke(str(POLICY), "--engine", "vllm")


def test_an_engine_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="'lokal'"):
        invoke(str(POLICY), "--engine", "lokal")


@pytest.mark.slow
def test_one_request_to_a_served_policy() -> None:
    line = [sys.executable, "-m", "agentlightning", "serve", str(POLICY), "--port", "0", "--threads", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "AGL_PLUGINS"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        body = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"{address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert json.loads(answer.read())["usage"]["completion_tokens"] <= 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
