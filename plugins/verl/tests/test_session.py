"""A session's processes are found and ended, also those with a process group of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agl_verl.process import session
from agl_verl.process.child import Child

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="verl runs on Linux")

LEADER = """
import subprocess, sys
own = subprocess.Popen([sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
                       process_group=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
own.stdout.readline()
print(own.pid, flush=True)
sys.stdin.read()
"""


def leader() -> tuple[subprocess.Popen[bytes], int]:
    """A session leader that has a child with a group of its own, as Ray's workers have."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LEADER], start_new_session=True, **pipes)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_all_of_a_session_ends() -> None:
    process, other = leader()
    with process:
        assert os.getpgid(other) == other != process.pid
        assert sorted(session.members(process.pid)) == sorted([process.pid, other])
        assert session.end(process.pid) == []
        assert session.members(process.pid) == []


def test_what_outlives_its_leader_is_found_all_the_same() -> None:
    process, _ = leader()
    with process:
        stopped = subprocess.Popen(["sleep", "60"], start_new_session=True)
        process.kill()
        process.wait()
        session.end(process.pid)
        assert not session.members(process.pid)
        assert stopped.poll() is None  # another session's
        stopped.kill()
        stopped.wait()


def test_the_error_is_the_last_line_that_names_one(tmp_path: Path) -> None:
    child = Child("python", [], {}, tmp_path / "log")
    child.output.write_text(
        "ValueError: first\nTraceback …\n  File x\nray.exceptions.ActorDiedError: gone\nbye\n"
    )
    assert child.error() == "\nray.exceptions.ActorDiedError: gone"
    child.output.write_text("all is well\n")
    assert child.error() == ""
