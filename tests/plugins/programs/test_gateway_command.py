"""``agl gateway``: any client at its address is recorded, with the key that it prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from agl_testing import ScriptedModelServer
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.types import UsageError
from agl_audit.run import open_run

AGL = [sys.executable, "-c", "from _agl_main import main; main()"]


def ask(address: str, key: str) -> dict[str, object]:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{address}/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as answer:
        found: dict[str, object] = json.loads(answer.read())
    return found


async def test_calls_of_any_client_are_one_rollout_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["gateway", "--listen", "127.0.0.1:0", "--run-id", "mine"]
    with ScriptedModelServer() as engine:
        upstream = ["--upstream", engine.url, "--model", engine.model]
        with subprocess.Popen(
            [*AGL, *line, *upstream], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert ask(told["address"], told["api_key"])["choices"] and ask(told["address"], told["api_key"])
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask(told["address"], "another")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        assert process.returncode == 0 and "agl rollouts mine" in said and told["model"] == "policy"
    monkeypatch.chdir(tmp_path)
    async with open_run("mine") as run:
        rollout = await run.store.get_rollout_by_id(told["rollout"])
        calls = await run.store.query_calls(told["rollout"])
    assert (rollout.status, len(calls)) == ("succeeded", 2) and run.info["summary"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "name the model"),
        (["--upstream", "http://127.0.0.1:1/v1"], "give --model"),
        (["--policy", "nowhere"], "a model folder in Hugging Face layout"),
    ],
)
def test_a_wrong_option_is_named(line: list[str], message: str) -> None:
    found = CliRunner().invoke(app(["gateway"]), ["gateway", *line])
    assert isinstance(found.exception, UsageError) and message in str(found.exception)
