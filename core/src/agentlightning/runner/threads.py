"""Synchronous agents run in a thread each, and so does what others hand to ``asyncio.to_thread``.

A thread cannot be killed, so one that outlives its attempt is left alone: it is a daemon, so a hung agent
neither takes a place from the next rollout nor keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
        elif isinstance(error, StopIteration | GeneratorExit):  # these mean something else to who awaits
            told = RuntimeError(f"{type(error).__name__}: {error}")
            told.__cause__ = error
            outcome.set_exception(told)
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


class Daemons(ThreadPoolExecutor):
    """An executor with a new daemon thread for each piece of work, which nobody waits for at the end."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="agl-to-thread", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the threads to themselves."""


def wait_for_no_thread() -> None:
    """Let the end of the running loop wait for no thread that an agent has left hanging; an executor that
    somebody has given the loop, or that is in use already, stays.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "_default_executor", None) is None:
        loop.set_default_executor(Daemons())
