"""An event loop for agents, in a daemon thread of its own.

Invariants: the loop runs until it is stopped, even if a task raises SystemExit; a thread that hangs in an
agent's code keeps no process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agentlightning.capture.context import current_attempt
from agentlightning.runner.event_loops.agent_task import AgentTask
from agentlightning.runner.event_loops.forks import exit_forks_of_loop
from agentlightning.runner.event_loops.threads import use_daemon_executor
from agentlightning.runner.outcomes.source_line import SourceLine, innermost_user_line, is_idle, stack_lines

log = logging.getLogger(__name__)
Awaited = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
STOP_SECONDS = 1.0
"""Seconds that the tasks left on a loop have to end, once it is stopped."""


class AgentLoop:
    """Runs tasks until :meth:`stop`. Its methods are called from the serving loop, which made it."""

    def __init__(self) -> None:
        self._serving_loop = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._stopping = asyncio.Event()
        self._attempt_ids: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._ponged = True
        self.missed_pings = 0
        """Pings in a row before which the loop had not answered the last one."""
        self.tasks: set[AgentTask] = set()
        self.ended: asyncio.Future[None] = self._serving_loop.create_future()
        self._thread = threading.Thread(target=self._run, name="agl-agents", daemon=True)
        self._thread.start()

    def start(self, agent_task: AgentTask) -> None:
        """Run a task here, unless it runs on another loop already."""
        if agent_task.start_on(self._loop):
            self.tasks.add(agent_task)
            agent_task.done.add_done_callback(lambda _: self.tasks.discard(agent_task))

    def ping(self) -> None:
        """Ping the loop, or count that it has not answered the last ping yet."""
        if not self._ponged:
            self.missed_pings += 1
            return
        self.missed_pings, self._ponged = 0, False
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._pong)

    def blocked_at(self) -> SourceLine | None:
        """The line that keeps the loop busy; ``None``: the loop is idle."""
        frames = stack_lines(sys._current_frames().get(self._thread.ident or 0))
        return None if is_idle(frames) else innermost_user_line(frames)

    def running_attempt(self) -> str | None:
        """The attempt whose code is running, if it is known."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        own = next((agent_task.attempt_id for agent_task in self.tasks if agent_task.task is task), None)
        return own or self._attempt_ids.get(task)

    def stop(self) -> None:
        """Cancel the tasks left on the loop and end it."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    def _pong(self) -> None:
        self._ponged = True

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
            self._serving_loop.call_soon_threadsafe(self._set_ended)

    def _set_ended(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def _serve(self) -> None:
        exit_forks_of_loop()
        use_daemon_executor()
        await self._stopping.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            _, late = await asyncio.wait(left, timeout=STOP_SECONDS)
            for task in late:  # it ignored being cancelled, and is dropped with the loop
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        await self._loop.shutdown_asyncgens()
