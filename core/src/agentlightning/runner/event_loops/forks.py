"""Processes that an agent forks while it runs on an event loop.

Such a process is a copy of the whole run: its loop would read the gateway's sockets and answer requests.
Invariant: the process runs the agent's code and exits before the loop runs again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from weakref import WeakKeyDictionary

_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""Loops that run agents → the thread that each runs in."""


def exit_forks_of_loop() -> None:
    """Let every fork of this process exit instead of returning to the running loop."""
    _loops[asyncio.get_running_loop()] = threading.get_ident()


def _in_child() -> None:
    for loop, thread in _loops.items():
        if thread == threading.get_ident() and not loop.is_closed():
            loop.call_soon(os._exit, 0)


os.register_at_fork(after_in_child=_in_child)
