"""A port that another process has: every server says so in one sentence, with what to do, and ends with 2."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentlightning.cli import app, run_command

ROOT = Path(__file__).parents[2]
ENGINE = ["--upstream", "http://127.0.0.1:1/v1", "--model", "m"]
TRAIN = [
    "train",
    "--config",
    str(ROOT / "examples" / "calc_x" / "cpu.yaml"),
    "--set",
    "backend.options.engine=thread",
]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("words", "server"),
    [
        (["store", "store.sqlite", "--port", "PORT"], "the store"),
        (["gateway", *ENGINE, "--listen", "PORT"], "the gateway"),
        (["gateway", *ENGINE, "--listen", "127.0.0.1:PORT"], "the gateway"),
        (["serve", "tiny", "--port", "PORT", "--threads", "1", "--max-len", "64"], "the engine"),
        (["dashboard", "runs", "--port", "PORT"], "the dashboard"),
        ([*TRAIN, "--listen", "127.0.0.1:PORT"], "the gateway"),
        ([*TRAIN, "--set", "gateway.listen=127.0.0.1:PORT", "--set", "gateway.gateways=2"], "the gateway"),
        ([*TRAIN, "--set", "metrics.port=PORT"], "the page of metrics"),
    ],
    ids=lambda given: " ".join(given[:1]) if isinstance(given, list) else given,
)
def test_one_sentence_and_exit_status_2(
    words: list[str],
    server: str,
    taken: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    line = [word.replace("PORT", str(taken)) for word in words]
    with pytest.raises(SystemExit) as ended:
        run_command(lambda: app(line)(line, prog_name="agl"))
    said = capfd.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said
    (sentence,) = [line for line in said.splitlines() if "cannot listen" in line] or [said]
    assert f"{server} cannot listen on 127.0.0.1:{taken}: the port is in use. End" in sentence
    assert "0 takes a free one" in sentence
