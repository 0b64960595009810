"""One agent's coroutine on an agent loop, as the serving loop sees it.

Invariants: ``done`` is a future of the serving loop and is resolved there; the coroutine begins on one loop
at most.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from agentlightning.runner.outcomes.source_line import SourceLine

Work = Callable[[], Coroutine[Any, Any, Any]]


class ExitRaised(NamedTuple):
    """An exception that would end its loop if a task raised it."""

    error: BaseException


class AgentTask:
    """``work`` makes the coroutine. ``counts``: where a loop that it blocks is counted. ``retryable``: a new
    attempt follows if this one is stopped because another blocks their loop. Methods are called from the
    serving loop.
    """

    def __init__(self, work: Work, attempt_id: str, counts: Counter[str], *, retryable: bool = False) -> None:
        self._serving_loop = asyncio.get_running_loop()
        self._work: Work | None = work
        self._mutex = threading.Lock()
        self.task: asyncio.Task[Any] | None = None
        """The asyncio task, once the coroutine has begun."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.attempt_id = attempt_id
        self.counts = counts
        self.retryable = retryable
        self.stopped_for: SourceLine | None = None
        """The line at which another attempt blocked the loop, if this one was stopped for it."""
        self.done: asyncio.Future[Any] = self._serving_loop.create_future()

    def start_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Begin on ``loop``; false if it has begun on another."""
        with self._mutex:
            if self.task is not None:
                return False
            self._loop = loop
        loop.call_soon_threadsafe(self._begin, loop)
        return True

    def cancel(self) -> None:
        """Cancel the coroutine; ``done`` is resolved when it has ended."""
        with self._mutex:
            self._work = None
            if self.task is not None:
                with suppress(RuntimeError):  # its loop has ended
                    self.task.get_loop().call_soon_threadsafe(self.task.cancel)
                return
        self.done.cancel()

    def stop_for(self, line: SourceLine) -> None:
        """Stop without waiting, because another attempt blocks the loop at ``line``."""
        if not self.done.done():
            self.stopped_for = line
            self.cancel()
            self.done.cancel()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.create_task(self._run(loop), name=f"attempt {self.attempt_id}")

    async def _run(self, loop: asyncio.AbstractEventLoop) -> Any:
        task = asyncio.current_task()
        with self._mutex:  # it may have been stopped, or sent to another loop, before its turn came
            if task is None or self._loop is not loop or self._work is None or self.task is not None:
                return None
            self.task, work = task, self._work
        task.add_done_callback(self._ended)
        try:
            return await work()
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:  # no signal comes to this thread
            return ExitRaised(error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        with suppress(RuntimeError):  # the serving loop is closed, and the attempt has ended with it
            self._serving_loop.call_soon_threadsafe(self._resolve, task)

    def _resolve(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.done.done():  # it was stopped without waiting
            return
        if task.cancelled():
            self.done.cancel()
        elif error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())
