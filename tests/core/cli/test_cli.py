"""The command line: messages a person can act on, and a last line a machine can read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from agentlightning import cli

CONFIG = Path(__file__).parents[3] / "examples" / "calc_x" / "cpu.yaml"
AGL = [sys.executable, "-c", "from _agl_main import main; main()"]


def agl(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if k != "AGL_PLUGINS"
    }  # installed plugins, as for a user
    return subprocess.run([*AGL, *arguments], capture_output=True, text=True, timeout=120, env=environment)


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli.app(), ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("train", "eval", "store", "plugins"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-c", "none.yaml"], "agl: none.yaml: there is no such file"),
        (
            ["train", "-c", str(CONFIG), "--set", "training.stepz=3"],
            "training.stepz: Extra inputs are not permitted",
        ),
        (["train", "-c", str(CONFIG), "--set", "nonsense"], "--set 'nonsense': write key=value"),
        (
            ["train", "-c", str(CONFIG), "--set", "training.algorithm=grop"],
            "no recipe is called 'grop'; known: grpo, rloo",
        ),
        (["train", "-c", str(CONFIG), "--set", "training.recipe={group_sise: 2}"], "training.recipe: "),
        (
            ["train", "-c", str(CONFIG), "--set", "agent.target=calc_x.agent:nope"],
            "module 'calc_x.agent' has no 'nope'",
        ),
        (
            ["train", "-c", str(CONFIG), "--set", "backend.driver=verl"],
            "no driver is called 'verl'; known: local",
        ),
    ],
)
def test_what_a_person_can_mend_is_said_without_a_traceback(arguments: list[str], message: str) -> None:
    done = agl(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_eval_prints_one_json_object_last(tmp_path: Path) -> None:
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
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["n"] == 4 and result["calls_made"] == result["calls_exact"] > 0 and result["failed"] == 0
    assert "evaluated eval" in done.stderr


def test_real_problems_run_through_the_same_command(tmp_path: Path) -> None:
    sets = ("environment.val={target: calc_x.datasets:load, args: {spec: svamp}}", "environment.headroom={}")
    done = agl(
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


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


async def test_store_serves_until_sigterm(tmp_path: Path) -> None:
    from agentlightning.store import StoreClient

    process = subprocess.Popen(
        [*AGL, "store", str(tmp_path / "s.sqlite"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = _line(process.stdout).split()[-1]
        client = StoreClient(url)
        rollout = await client.enqueue_rollout({"q": 1})
        assert (await client.get_rollout_by_id(rollout.rollout_id)).input == {"q": 1}
        await client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.communicate()
