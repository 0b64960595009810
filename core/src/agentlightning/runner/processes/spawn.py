"""Starts worker processes: by :mod:`multiprocessing`'s spawn method, each with a connection to its parent.

Invariant: a worker ends with its parent (on Linux), and Ctrl-C in a terminal reaches only the parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from agentlightning.runner.processes.process_tree import die_with_parent

SPAWN = multiprocessing.get_context("spawn")


def spawn(target: Callable[..., None], *args: Any, name: str) -> tuple[SpawnProcess, Connection]:
    """Start ``target(connection, parent's id, *args)`` in a new process; the process and our end of its
    connection. ``target`` is imported there, and calls :func:`enter` first.

    ``OSError``: there can be no further process. ``RuntimeError``: a worker is importing the main script.
    """
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
    """In a new process: lead a session and a process group, end with ``parent``, and share the connection
    with no process that is started or forked from here.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent(parent)
    os.set_inheritable(connection.fileno(), False)
    os.register_at_fork(after_in_child=connection.close)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """A process started inside does not see Ctrl-C until it has left the terminal's process group."""
    resource_tracker.ensure_running()  # starting it with the first process would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
