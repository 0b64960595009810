"""Starts worker processes that end with their parent, and kills processes with all their descendants.

Workers are started by :mod:`multiprocessing`'s spawn method, with a connection to their parent. On Linux the
kernel kills a worker when its parent dies, and makes the worker the parent of its descendants' orphans. On
other systems a process that has left the worker's process group is not found. Invariant: Ctrl-C in a terminal
reaches the parent only.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import psutil

from agentlightning.child_environment import hide_secrets

SPAWN = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


# ---------------------------------------------------------------------------------------------- starting
def spawn(target: Callable[..., None], *args: Any, name: str) -> tuple[SpawnProcess, Connection]:
    """Start ``target(connection, parent's id, *args)`` in a new process. Return the process and this end of
    its connection. ``target`` is imported there and must call :func:`enter` first. The process inherits no
    secret of the run.

    Raise ``OSError`` if the system allows no further process, and ``RuntimeError`` if a worker is importing
    the main script.
    """
    hide_secrets()
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, os.getpid(), *args), name=name)
    try:
        with _ctrl_c_blocked():
            process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def enter(connection: Connection, parent: int) -> None:
    """Set up a new process: it leads a session and a process group, ends with ``parent``, and shares the
    connection with no process that it starts or forks.
    """
    hide_secrets()  # also from the other workers, which have the same user
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)
    os.set_inheritable(connection.fileno(), False)
    os.register_at_fork(after_in_child=connection.close)


def adopt_orphans() -> None:
    """Adopt descendants that lose their parent, so that :func:`kill_tree` finds them (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C for a process started in the block, until it has left the terminal's process group."""
    resource_tracker.ensure_running()  # starting it with the first process would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


# ------------------------------------------------------------------------------------------------ ending
def descendants(pid: int) -> set[psutil.Process]:
    """Return the children of ``pid``, their children, and so on. Each object knows when its process began,
    because process ids are used again.
    """
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.Error:  # it has ended
        return set()


def kill_tree(pid: int) -> None:
    """Kill a child of this process, the process group that it leads, and all its descendants. Each is stopped
    first, so that none can start another meanwhile.
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
    """Kill those processes that still run."""
    _signal_all(processes, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the process group that ``pid`` leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has no member left
        os.killpg(pid, signal.SIGKILL)


def _signal_all(targets: Iterable[psutil.Process | int], number: signal.Signals) -> None:
    """Send a signal to those that still run and that this process may signal."""
    for target in targets:
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            os.kill(target, number) if isinstance(target, int) else target.send_signal(number)


def describe_exit(code: int) -> str:
    """Return an exit status in words. A negative status is a signal, as in :mod:`subprocess`."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"died with signal {-code} ({name})"
