"""How many cores torch uses in a thread of ours, apart from all others.

Every Python thread in which torch has run an operation in parallel keeps a pool of OpenMP threads. Where the
pools together have more threads than there are cores, their threads no longer wait busily for work and tend
to end up on one core (measured: two cores were no faster than one). So a process that serves lets the
engine's thread alone have several: others are set to one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch


def start_thread(main: Callable[[], None], name: str, threads: int | None) -> threading.Thread:
    """Start ``main`` in a daemon thread whose torch operations use ``threads`` cores; None: as in others."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    ready: Future[None] = Future()

    def run() -> None:
        try:
            if threads is not None:
                # A thread that has not been asked yet takes the common number at its first operation.
                torch.get_num_threads()
                torch.set_num_threads(threads)
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        main()

    before = torch.get_num_threads()
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        ready.result()
    finally:
        if threads is not None:
            # Threads to come take the number that was set last, in whichever thread.
            torch.set_num_threads(before)
    return thread
