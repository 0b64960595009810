"""scripts/setup_gpu.sh: the commands that it would run, and what it refuses. It installs nothing here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "setup_gpu.sh"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="a script for bash")


def run(*words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), "--python", python, *words], capture_output=True, text=True)


def commands(*words: str) -> list[str]:
    done = run("--dry-run", *words)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("+ ") for line in done.stdout.splitlines() if line.startswith("+ ")]


def test_bash_can_read_it() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0


def test_a_dry_run_prints_every_command_and_runs_none(tmp_path: Path) -> None:
    folder = tmp_path / "an environment"
    made = commands("--venv", str(folder), "--torch-index", "https://wheels.example/cu", "--flash-attn")
    assert made[0] == f"{sys.executable} -m venv {str(folder).replace(' ', chr(92) + ' ')}"
    install = next(line for line in made if "plugins/verl" in line)
    assert "--extra-index-url https://wheels.example/cu -e core -e plugins/local" in install
    assert r"plugins/verl\[vllm\]" in install
    assert any("--no-build-isolation flash-attn==" in line for line in made)
    assert made[-1].endswith("-m agl_verl.inside.found --engine vllm")
    assert not folder.exists()


def test_the_defaults_are_plain() -> None:
    made = commands("--engine", "embedded")
    assert not any("index" in line or "flash" in line for line in made)
    assert any(r"plugins/verl\[gpu\]" in line for line in made) and made[0].endswith(".venvs/verl-gpu")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--engine", "trtllm"], "--engine is trtllm; it is vllm or embedded"),
        (["--fast"], "--fast is not known"),
        (["--venv"], "--venv needs a value"),
    ],
)
def test_what_is_not_known_is_refused(words: list[str], why: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and why in done.stderr


def test_pythons_that_will_not_do(tmp_path: Path) -> None:
    assert "does not start" in run("--dry-run", python="/no/such/python").stderr
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3.13\n")
    old.chmod(0o755)
    assert "is for Python 3.11 and 3.12" in run("--dry-run", python=str(old)).stderr


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_nothing_is_installed() -> None:
    done = run()
    assert (
        done.returncode == 2
        and "there is no GPU to set up; on a CPU: scripts/environment verl" in done.stderr
    )


def test_help_says_every_option() -> None:
    said = run("--help").stdout
    for option in ("--venv", "--python", "--engine", "--torch-index", "--flash-attn", "--dry-run"):
        assert option in said


def test_the_versions_are_pinned() -> None:
    project = tomllib.loads((ROOT / "plugins" / "verl" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra, names in {
        "gpu": {"torch", "transformers"},
        "vllm": {"torchaudio", "torchvision", "vllm"},
    }.items():
        pinned = {line.partition("==")[0] for line in extras[extra] if "==" in line}
        assert pinned == names
    assert any(line.startswith("verl==0.9.1") for line in extras["cpu"])
