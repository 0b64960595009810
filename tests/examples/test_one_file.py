"""``examples/one_file.py``: short, and it learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "one_file.py"


@pytest.mark.nightly
def test_the_agent_gets_better() -> None:
    options = ["--steps", "12", "--held-out", "64"]
    done = subprocess.run([sys.executable, str(FILE), *options], capture_output=True, text=True, check=True)
    *steps, last = done.stdout.splitlines()
    found = json.loads(last)
    assert found["lines"] <= 300 and found["after"] > found["before"] + 0.15
    assert found["calls"] == found["calls_with_ids"] > 0
    assert len([line for line in steps if line.startswith("step ")]) == 12
