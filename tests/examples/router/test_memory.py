"""The peak is that of all processes together, and stays when they are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from router.memory import PeakMemory

HOLDS = "held = bytearray(80_000_000); print('held', flush=True); input()"


def test_what_a_child_takes_counts_also_after_it_has_ended() -> None:
    with PeakMemory() as memory:
        assert memory.started == 0
        alone = memory.read()
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        both = memory.read()
        child.communicate("\n")
    assert both - alone > 75
    assert memory.megabytes >= both > memory.read()
    assert 75 < memory.started < both and memory.own == pytest.approx(alone, rel=0.1)
