"""The processes of one session (``setsid``): how what Ray starts is found again, and ended.

The child leads a session. Ray gives its workers process groups of their own, so a signal to the child's group
does not reach them; the session does. Linux, where verl runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")


def members(session: int) -> list[int]:
    """Ids of the processes of ``session`` that run; those that have ended and wait to be read do not."""
    found = []
    for place in PROC.iterdir():
        if not place.name.isdigit():
            continue
        try:
            told = (place / "stat").read_text(encoding="utf-8")
        except OSError:  # it ended while we looked
            continue
        state, _, _, owner = told.rpartition(")")[2].split()[:4]  # its name may hold anything
        if int(owner) == session and state not in "ZX":
            found.append(int(place.name))
    return found


def end(session: int, patience: float = 10.0) -> list[int]:
    """Kill all that is left of ``session`` but this process itself; what would not end in time."""
    limit = time.monotonic() + patience
    while left := [pid for pid in members(session) if pid != os.getpid()]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > limit:
            return left
        time.sleep(0.02)
    return []
