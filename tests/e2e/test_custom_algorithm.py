"""The tutorial of a custom algorithm runs as it is written: store, runner, algorithm in processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agl_testing import ScriptedModelServer

SCRIPT = Path(__file__).parents[2] / "examples" / "apo" / "apo_custom_algorithm.py"
ANSWERS = {"France": "Paris", "hot": "Cold", "meow": "cat"}


@pytest.fixture
def model() -> Iterator[ScriptedModelServer]:
    """A model that writes capitals and full stops unless it is asked not to."""

    def answer(body: dict[str, object]) -> str:
        text = str(body["messages"])
        word = next(said for asked, said in ANSWERS.items() if asked in text)
        if "lower case" in text:
            return word.lower()
        return word if "one word" in text else f"It is {word}."

    with ScriptedModelServer(answer) as running:
        yield running


@pytest.mark.slow
def test_three_processes_find_the_best_prompt(model: ScriptedModelServer, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "AGL_STORE": f"http://127.0.0.1:{port}", "OPENAI_BASE_URL": model.url,
                   "OPENAI_API_KEY": "none", "MODEL": model.model}  # fmt: skip
    store = [
        sys.executable,
        "-c",
        "from _agl_main import main; main()",
        "store",
        str(tmp_path),
        "--port",
        str(port),
    ]
    started = [
        subprocess.Popen([sys.executable, str(SCRIPT), "runner"], env=environment, stderr=subprocess.DEVNULL),
        subprocess.Popen(store, stdout=subprocess.DEVNULL),
    ]
    try:
        algo = [sys.executable, str(SCRIPT), "algo"]
        told = subprocess.run(algo, env=environment, capture_output=True, text=True, timeout=300, check=True)
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(300)
    lines = told.stdout.splitlines()
    assert [line[:4] for line in lines[:3]] == ["0.00", "0.33", "1.00"]
    assert lines[3].startswith("best: Answer with one word, in lower case")
