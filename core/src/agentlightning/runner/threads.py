"""Synchronous agents run in a thread each.

A thread cannot be killed, so one that outlives its attempt is left alone: it is a daemon, so a hung agent
neither takes a place from the next rollout nor keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, name: str = "agl-agent") -> T:
    """Call ``function`` in a new daemon thread, in this task's context; cancelling stops only the waiting."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():  # nobody waits any more
            return
        if error is None:
            outcome.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses this one
            outcome.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            outcome.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop was closed meanwhile; the attempt has long been settled
            return

    threading.Thread(target=work, name=name, daemon=True).start()
    return await outcome
