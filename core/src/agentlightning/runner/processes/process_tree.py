"""Processes that end when they should: with their parent, and with everything they started.

On Linux the kernel kills a process whose parent died, and adopts for it what its children leave behind;
elsewhere a process group is what can be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PDEATHSIG, _SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int) -> None:
    if _LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def die_with_parent(parent: int) -> None:
    """Kill this process when process ``parent``, which started it, is gone (Linux); at once, if it is."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of what descends from this process, so that :func:`kill_tree` finds it (Linux)."""
    _prctl(_SUBREAPER, 1)


def kill_tree(pid: int) -> None:
    """SIGKILL a child that leads its own process group, the group, and whatever descends from it.

    Each is stopped first, so that none can start another meanwhile.
    """
    _signal(pid, signal.SIGSTOP)
    found: set[int] = set()
    while fresh := descendants(pid) - found:
        for one in fresh:
            _signal(one, signal.SIGSTOP)
        found |= fresh
    kill_all(found)
    kill_group(pid)
    _signal(pid, signal.SIGKILL)


def kill_all(pids: set[int]) -> None:
    """SIGKILL what is still there of these."""
    for one in pids:
        _signal(one, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL the process group that ``pid`` leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """An exit status of :mod:`subprocess` in words."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"died with signal {-code} ({name})"


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is not ours to signal
        os.kill(pid, number)


def descendants(pid: int) -> set[int]:
    """Children of ``pid`` and theirs; empty where the system does not tell."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                children = {int(word) for word in task.read_text().split()} - found
                found |= children
                waiting += children
    return found
