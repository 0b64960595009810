"""An event loop for agents, in a daemon thread of its own, and the agents' coroutines on it.

Invariants: the loop runs until it is stopped, even if a task raises SystemExit. A thread that hangs in an
agent's code does not keep the process from ending. A coroutine begins on at most one loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agentlightning.capture.context import current_attempt
from agentlightning.runner.event_loops.threads import prepare_agent_loop
from agentlightning.runner.outcomes.tracebacks import (
    SourceLine,
    innermost_user_line,
    is_idle,
    is_user_code,
    stack_lines,
)

log = logging.getLogger(__name__)
Awaited = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
STOP_SECONDS = 1.0
"""Seconds that the tasks left on a stopped loop have to end."""


class AgentTask:
    """The coroutine of one agent, as the serving loop sees it. Methods are called from the serving loop.

    ``work`` makes the coroutine. A loop that the agent blocks is counted in ``counts``. ``retryable``: a new
    attempt follows if this one is stopped because another attempt blocks their loop.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        attempt_id: str,
        counts: Counter[str],
        *,
        retryable: bool = False,
    ) -> None:
        self._serving_loop = asyncio.get_running_loop()
        self._work = work
        self._mutex = threading.Lock()
        self._home: AgentLoop | None = None
        """The loop on which the coroutine may begin."""
        self.task: asyncio.Task[Any] | None = None
        """The asyncio task, once the coroutine has begun."""
        self.attempt_id = attempt_id
        self.counts = counts
        self.retryable = retryable
        self.stopped_for: SourceLine | None = None
        """The line at which another attempt blocked the loop, if this attempt was stopped for it."""
        self.done: asyncio.Future[Any] = self._serving_loop.create_future()
        """The result, a future of the serving loop."""

    def assign(self, home: AgentLoop) -> bool:
        """Let the coroutine begin on ``home``. Return ``False`` if it has begun or was stopped."""
        with self._mutex:
            if self.task is not None or self.done.done():
                return False
            self._home = home
            return True

    def begin(self, home: AgentLoop) -> asyncio.Task[Any] | None:
        """Begin, in the thread of ``home``, unless the task was stopped or assigned to another loop."""
        with self._mutex:
            if self._home is not home or self.task is not None:
                return None
            self.task = asyncio.get_running_loop().create_task(self._work())
        self.task.add_done_callback(self._ended)
        return self.task

    def cancel(self) -> None:
        """Cancel the coroutine; ``done`` is resolved when it has ended."""
        with self._mutex:
            self._home = None
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


class AgentLoop:
    """Runs tasks until :meth:`stop`. Its methods are called from the serving loop, which made it. ``shared``:
    new rollouts run here too.
    """

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        self.missed_pings = 0
        """Pings in a row that came before the last one was answered."""
        self.suspect: tuple[str | None, str, str] | None = None
        """Attempt, file and function of the agent's code that ran at the last missed ping."""
        self.suspected = 0
        """Missed pings in a row that found this suspect. Others were the load of many, or of the machine."""
        self.tasks: set[AgentTask] = set()
        self._serving_loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self._attempt_ids: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._answered = True
        self._stopping = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._thread = threading.Thread(target=self._run, name="agl-agents", daemon=True)
        self._thread.start()

    def start(self, agent_task: AgentTask) -> None:
        """Run a task here, unless it runs on another loop already."""
        if agent_task.assign(self):
            self.tasks.add(agent_task)
            agent_task.done.add_done_callback(lambda _: self.tasks.discard(agent_task))
            self._loop.call_soon_threadsafe(self._begin, agent_task)

    def ping(self) -> None:
        """Ping the loop, or count that it has not answered the last ping yet."""
        if not self._answered:
            self.missed_pings += 1
            self._suspect()
            return
        self.missed_pings, self.suspected, self._answered = 0, 0, False
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._answer)

    def _suspect(self) -> None:
        line = self.blocked_at()
        found = None
        if line is not None and is_user_code(line.file):
            found = (self.running_attempt(), line.file, line.function)
        self.suspected = 0 if found is None else self.suspected + 1 if found == self.suspect else 1
        self.suspect = found

    def blocked_at(self) -> SourceLine | None:
        """Return the line that keeps the loop busy; ``None`` if the loop is idle."""
        frames = stack_lines(sys._current_frames().get(self._thread.ident or 0))
        return None if is_idle(frames) else innermost_user_line(frames)

    def running_attempt(self) -> str | None:
        """Return the attempt whose code is running, if it is known."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._attempt_ids.get(task)

    def stop(self) -> None:
        """Cancel the tasks left on the loop and end it."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    # ------------------------------------------------------------------------------- in the loop's thread
    def _answer(self) -> None:
        self._answered = True

    def _begin(self, agent_task: AgentTask) -> None:
        if (task := agent_task.begin(self)) is not None:
            self._attempt_ids[task] = agent_task.attempt_id

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Awaited, /, **given: Any
    ) -> asyncio.Task[Any]:
        """Make a task and note the attempt that it works for."""
        task = asyncio.Task(work, loop=loop, **given)
        context = current_attempt()
        if context is not None:
            self._attempt_ids[task] = context.attempt_id
        return task

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(self._serve())
        while not serving.done():
            try:
                self._loop.run_until_complete(serving)
            except BaseException as error:  # a task raised SystemExit, say, or an agent stopped the loop
                log.warning("an agent broke out of its event loop with %r; the loop goes on", error)
        self._loop.close()
        with suppress(RuntimeError):  # the serving loop is closed
            self._serving_loop.call_soon_threadsafe(self.ended.set)

    async def _serve(self) -> None:
        prepare_agent_loop()
        await self._stopping.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            _, late = await asyncio.wait(left, timeout=STOP_SECONDS)
            for task in late:  # it ignored being cancelled, and is dropped with the loop
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        await self._loop.shutdown_asyncgens()
