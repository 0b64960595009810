"""Processes that an agent forks off while it runs on the event loop.

Such a process is a copy of the whole run: its loop would read the gateway's sockets and answer in its name.
Invariant: it runs what the agent told it to, and ends instead of coming back to the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from weakref import WeakKeyDictionary

_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""Loops that run agents, with the thread each runs in."""
_registered: list[bool] = []
"""Whether our hook is: it cannot be taken back, so there is one."""


def exit_forks_of_loop() -> None:
    """Let no fork of this process come back to the running loop."""
    if hasattr(os, "register_at_fork") and not _registered:
        os.register_at_fork(after_in_child=_in_child)
        _registered.append(True)
    _loops[asyncio.get_running_loop()] = threading.get_ident()


def _in_child() -> None:
    for loop, thread in _loops.items():
        if thread == threading.get_ident() and not loop.is_closed():
            loop.call_soon(os._exit, 0)
