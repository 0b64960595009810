"""The demos as programs: what a person mistypes is answered by one message, not by a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("example", ["desk", "router", "search", "spider", "text_world"])
def test_a_mistyped_option_is_named_in_one_line(example: str) -> None:
    command = [sys.executable, EXAMPLES / example / "demo.py", "--set", "training.stepps=3"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("agl: ") and "training.stepps: there is no such key" in line
