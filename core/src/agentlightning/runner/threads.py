"""Daemon threads for agents and for calls that agents pass to ``asyncio.to_thread``; forks of agents.

A thread cannot be killed, so a thread that outlives its attempt is abandoned. It is a daemon and belongs to
no pool: it takes no slot from the next rollout and does not keep the process from ending. A process that an
agent forks on an event loop runs the agent's code, and exits before the loop runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.thread import _threads_queues
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


def start_thread(function: Callable[..., T], *args: Any, name: str) -> Future[T]:
    """Call ``function`` in a new daemon thread, in this context, and return the future of its result."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = context.run(function, *args)
        except (StopIteration, GeneratorExit) as error:  # a coroutine that awaits it must not raise these
            wrapped = RuntimeError(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            future.set_exception(wrapped)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


async def in_thread(function: Callable[..., T], *args: Any, name: str = "agl-agent") -> T:
    """Call ``function`` in a new daemon thread, in this task's context, and return its result. Cancellation
    stops only the waiting.
    """
    return await asyncio.wrap_future(start_thread(function, *args, name=name))


def run_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine from synchronous code and return its result. If an event loop runs already, as in a
    notebook, the coroutine runs in a new thread and that loop waits. Ctrl-C cancels the coroutine and is
    raised when the coroutine has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.ensure_future(make())
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    result = start_thread(lambda: asyncio.run(main()), name="agl-run")
    try:
        return result.result()
    except KeyboardInterrupt:
        loop, task = begun.result()
        with suppress(RuntimeError):  # it has ended meanwhile
            loop.call_soon_threadsafe(task.cancel)
        wait([result])
        raise


def blocking_threads() -> list[str]:
    """Return the names of the threads that keep this process from ending: threads that are no daemons, and
    threads of an executor.
    """
    mine = (threading.main_thread(), threading.current_thread())
    others = (one for one in threading.enumerate() if one not in mine)
    return [one.name for one in others if not one.daemon or one in _threads_queues]


class DaemonExecutor(ThreadPoolExecutor):
    """An executor that starts a daemon thread for each call and waits for no thread at its end."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return start_thread(functools.partial(fn, *args, **kwargs), name="agl-to-thread")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for no thread."""


_agent_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""Loops that run agents → the thread that each runs in."""


def prepare_agent_loop() -> None:
    """Prepare the running loop for agents: it ends without waiting for threads in which agents hang, and a
    fork of this process exits instead of returning to the loop. An executor that the loop has already stays.
    """
    loop = asyncio.get_running_loop()
    _agent_loops[loop] = threading.get_ident()
    if getattr(loop, "_default_executor", None) is None:
        loop.set_default_executor(DaemonExecutor())


def _exit_fork() -> None:
    """Let a fork exit before its loop of agents calls anything more. It is a copy of the whole run: what the
    loop has ready to call would read the gateway's sockets, whose bytes the run would then miss.
    """
    for loop, thread in _agent_loops.items():
        if thread == threading.get_ident() and not loop.is_closed():
            loop.call_soon(os._exit, 0)
            if ready := getattr(loop, "_ready", None):  # asyncio's own loops have it
                ready.rotate(1)  # the exit comes first


os.register_at_fork(after_in_child=_exit_fork)
