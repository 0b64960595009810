"""The update in deterministic mode: the same rows give the same parameters, bit for bit, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def updates(*args: object, hash_seed: int) -> dict[str, list[list[object]]]:
    """``update_script`` in a fresh interpreter, whose sets of strings have an order of their own."""
    # Threads that wait sleep: the machine may have other things to do.
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_WAIT_POLICY": "passive"}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "plugins.local.tests.update_script", *map(str, args)],
        env={**env, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[object]]] = json.loads(done.stdout)
    return found


@pytest.mark.nightly  # `test_invariant_driver.py` compares a run and a resumed one in this process
def test_fresh_processes_and_a_resumed_one_get_the_same_parameters(tmp_path: Path) -> None:
    straight = updates(0, 3, 1, hash_seed=0)
    assert updates(0, 3, 2, hash_seed=7) == straight
    first = updates(0, 2, 3, tmp_path, hash_seed=8)
    rest = updates(2, 3, 4, tmp_path, hash_seed=9)
    for kind, steps in straight.items():
        assert len({str(digest) for digest, _ in steps}) == 3, kind  # each step changed something
        assert first[kind] + rest[kind] == steps, kind
