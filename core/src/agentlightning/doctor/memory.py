"""Resident memory of this process and of its children (the engine), and how it grows.

Read from ``/proc`` where there is one, else from ``ps``; a process that ends while it is looked at counts as
nothing.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class MemoryUsage(NamedTuple):
    """Resident bytes at a moment."""

    moment: str
    trainer: int
    children: int


def measure(moment: str) -> MemoryUsage:
    """Resident memory now."""
    processes = _from_proc() if PROC.is_dir() else _from_ps()
    me = os.getpid()
    below = {me}
    while more := {pid for pid, (parent, _) in processes.items() if parent in below} - below:
        below |= more
    children = sum(processes[pid][1] for pid in below - {me})
    return MemoryUsage(moment, processes.get(me, (0, 0))[1], children)


def _from_proc() -> dict[int, tuple[int, int]]:
    """Process → (parent, resident bytes)."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(entry.name)] = (int(fields[1]), int(fields[21]) * page)
    return found


def _from_ps() -> dict[int, tuple[int, int]]:
    try:
        listed = subprocess.run(
            ["ps", "-axo", "pid=,ppid=,rss="], capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):  # no ps: the forecast says that memory is unknown
        return {}
    rows = [list(map(int, line.split())) for line in listed.splitlines()]
    return {pid: (parent, kilobytes * 1024) for pid, parent, kilobytes in rows}
