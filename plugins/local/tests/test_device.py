"""The engine and the driver on a device that is not the CPU: the pretend one of ``bench/gpu``, in processes
of their own. Its compiler is g++: tests are skipped where there is none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import pretend

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(pretend.compiler() is None, reason="no g++ to compile the pretend device")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that has the device."""
    command = [sys.executable, *arguments]
    environment = {**pretend.environment(), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")


def run_tests(*arguments: str) -> None:
    """Run tests with every policy on the device."""
    done = run("-m", "pytest", "-q", "-p", "bench.gpu.on_device", *arguments, AGL_TEST_DEVICE="pretend")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_what_holds_on_a_device() -> None:
    run_tests("-m", "", "plugins/local/tests/device_checks.py")


@pytest.mark.nightly
def test_the_drivers_tests_pass_on_a_device() -> None:
    run_tests("-n", "2", "plugins/local/tests")


@pytest.mark.plugins
@pytest.mark.nightly
def test_what_is_run_on_a_card_runs_without_one(tmp_path: Path) -> None:
    done = run("-m", "bench.gpu.run", "--out", str(tmp_path))
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and last["ok"], last
    assert list(last["stages"]) == ["env", "parity", "decode", "update", "sync", "demo", "driver"]
    assert last["card"] is last["decode_ms"] is last["update_s"] is last["peak_gb"] is None
    assert 0 < last["parity"] < 1e-4
    assert {file.stem for file in tmp_path.glob("*.json")} == set(last["stages"])


@pytest.mark.plugins
@pytest.mark.slow
def test_a_run_on_a_device_is_exact(tmp_path: Path) -> None:
    few = ("training.steps=2", "training.batch_size=2", "environment.val.args.limit=4")
    settings = (f"output={tmp_path}", "backend.options.device=pretend", "environment.headroom_tasks=2", *few)
    line = ("train", "--config", "examples/calc_x/cpu.yaml", *(x for s in settings for x in ("--set", s)))
    reports = tmp_path / "reports"
    reports.mkdir()
    done = run("-m", "agentlightning", *line, **{pretend.REPORT: str(reports)})
    assert done.returncode == 0, done.stderr[-4000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["calls"] == last["calls_exact"] > 0 and last["logprob_gap_max"] < 1e-4
    launched = [
        json.loads(file.read_text(encoding="utf-8"))["counts"]["launches"] for file in reports.iterdir()
    ]
    assert sum(count > 1000 for count in launched) == 2, "the trainer's process and the engine's"
