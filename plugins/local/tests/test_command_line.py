"""What the local driver says of settings, and how its run is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from core.cli.test_cli import Command, agl as agl

from agentlightning.store import SQLiteStore

CONFIG = Path(__file__).parents[3] / "examples" / "calc_x" / "cpu.yaml"


AGENT = """
import openai

async def solve(task, llm):
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "-")
    messages = [{"role": "user", "content": f"Ida has {task} coins. How many are half of them?"}]
    answer = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
    return float(len(answer.choices[0].message.content or "") % 2)

def tasks(n=4):
    return list(range(n))
"""


def small_run(folder: Path, **changes: Any) -> Path:
    """A run that lasts for hours if it is let: a few tokens a call, thousands of steps."""
    (folder / "agent_of_test_cli.py").write_text(AGENT)
    tasks = {"target": "agent_of_test_cli:tasks"}
    options = {"threads": 1, "engine_threads": 1, "max_num_seqs": 4, "max_len": 128}
    config: dict[str, Any] = {
        "agent": {"target": "agent_of_test_cli:solve", "concurrency": 4},
        "training": {"steps": 100_000, "batch_size": 1, "recipe": {"group_size": 2}},
        "environment": {"train": tasks, "val": tasks},
        "backend": {"policy": str(CONFIG.parent / "policy"), "options": options},
        "output": "runs",
        "store": "s.sqlite",
        "pythonpath": ["."],
    }
    for key, value in changes.items():
        config["backend"][key] = value
    path = folder / "run.yaml"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("backend.driver=abacus", "no driver is called 'abacus'. Known here: local"),
    ],
)
def test_what_a_person_can_mend_is_said_without_a_traceback(agl: Command, setting: str, message: str) -> None:
    done = agl("train", "-c", str(CONFIG), "--set", setting)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"thread": 1}}, "the local driver has no option 'thread'. Did you mean 'threads'?"),
        (
            {"options": {"lr": "1e-4x"}},
            "options of the local driver: Expected `float`, got `str` - at `$.lr`",
        ),
        ({"policy": "nowhere"}, "nowhere: there is no such folder"),
        ({"policy": "."}, "config.json: a model folder needs this file"),
    ],
)
def test_what_the_driver_cannot_use_is_said_without_a_traceback(
    agl: Command, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    done = agl("train", "-c", str(small_run(tmp_path, **changes)))
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("agl: "), done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


@pytest.mark.parametrize(
    ("number", "ctrl_c", "status"),
    [
        (signal.SIGINT, "default_int_handler", 130),
        pytest.param(signal.SIGTERM, "default_int_handler", 143, marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, "SIG_IGN", 143, marks=pytest.mark.nightly),  # a shell's background job
    ],
)
@pytest.mark.slow
def test_an_interrupted_run_closes_everything(
    tmp_path: Path, number: signal.Signals, ctrl_c: str, status: int
) -> None:
    start = (
        f"import signal; signal.signal(signal.SIGINT, signal.{ctrl_c}); from _agl_main import main; main()"
    )
    command = [sys.executable, "-c", start, "train", "-c", str(small_run(tmp_path))]
    environment = {k: v for k, v in os.environ.items() if k != "AGL_PLUGINS"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        lines = []
        while "evaluated" not in (line := _line(process.stderr)):
            assert line, "".join(lines)
            lines.append(line)
        engines = children(process.pid)
        assert engines
        process.send_signal(number)
        _, rest = process.communicate(timeout=300)
        assert process.returncode == status, rest
        assert rest.splitlines()[-1] == "agl: interrupted" and "Traceback" not in rest, rest
        assert not [engine for engine in engines if is_running(engine)]
    finally:
        process.kill()
        process.communicate()
    store = SQLiteStore(tmp_path / "s.sqlite")  # where the configuration's ``store`` says
    assert asyncio.run(_rollouts(store))


async def _rollouts(store: SQLiteStore) -> int:
    found = await store.query_rollouts()
    await store.close()
    return len(found)


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()
