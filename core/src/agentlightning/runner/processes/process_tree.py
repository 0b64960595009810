"""Ends processes with their parent, and with all their descendants.

On Linux the kernel kills a process when its parent dies, and makes a worker the parent of its descendants'
orphans. On other systems a process that has left the worker's process group is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when process ``parent``, which started it, ends (Linux); if it has
    ended already, end now.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Adopt descendants that lose their parent, so that :func:`kill_tree` finds them (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> set[psutil.Process]:
    """Children of ``pid``, their children, and so on. Each knows when it began: its id may be used again."""
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.Error:  # it has ended
        return set()


def kill_tree(pid: int) -> None:
    """SIGKILL a child of ours, the process group that it leads, and all its descendants.

    Each is stopped first, so that none can start another meanwhile.
    """
    _signal_all([pid], signal.SIGSTOP)
    found: set[psutil.Process] = set()
    while fresh := descendants(pid) - found:
        _signal_all(fresh, signal.SIGSTOP)
        found |= fresh
    kill_all(found)
    kill_group(pid)
    _signal_all([pid], signal.SIGKILL)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL those that still run."""
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended, or is not ours to signal
            process.kill()


def kill_group(pid: int) -> None:
    """SIGKILL the process group that ``pid`` leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has no member left
        os.killpg(pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """An exit status of :mod:`subprocess` or :mod:`multiprocessing` in words; negative for a signal."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"died with signal {-code} ({name})"


def _signal_all(targets: Iterable[psutil.Process | int], number: signal.Signals) -> None:
    for target in targets:
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            os.kill(target, number) if isinstance(target, int) else target.send_signal(number)
