"""Ctrl-C and SIGTERM end a command early in the same way, and close everything that the command opened.

While a loop runs, asyncio's handler of SIGINT cancels the main task, whose context managers then close their
resources; an exception raised wherever the program happens to be would break other tasks instead. SIGTERM
therefore goes through the same handler.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

THREADS_GRACE = 1.0
"""Seconds that threads of agents have to end after an interrupted process is otherwise done."""


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[threading.Event]:
    """Within the block SIGTERM acts as Ctrl-C and sets the yielded event."""
    terminated = threading.Event()

    def terminate(number: int, frame: FrameType | None) -> None:
        terminated.set()
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield terminated
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with _handle_ignored_sigint():
            yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)


_exit_status: list[int] = []
"""The exit status of a command that was interrupted."""


def set_exit_status(code: int) -> None:
    """Set the exit status of a command that was interrupted."""
    _exit_status.append(code)


def exit_despite_threads() -> None:
    """At the end of an interrupted process, do not wait for threads that agents have left behind."""
    if _exit_status:
        threading.Thread(target=_end, args=(_exit_status[-1],), name="agl-end", daemon=True).start()


def _end(code: int) -> None:
    from agentlightning.runner.threads import blocking_threads

    time.sleep(THREADS_GRACE)
    if not (names := blocking_threads()):
        return  # the process is ending
    with suppress(OSError, ValueError):  # nobody reads it any more
        print(f"agl: ended without threads that agents left behind: {', '.join(names)}", file=sys.stderr)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def _handle_ignored_sigint() -> Iterator[None]:
    """Give an ignored SIGINT Python's own handler within the block, and keep the signal itself blocked.

    A shell's background job ignores SIGINT, and then asyncio sets no handler that SIGTERM could use.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
