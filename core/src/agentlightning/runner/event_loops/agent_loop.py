"""An event loop for agents, in a daemon thread: what blocks it blocks nobody else.

Invariant: the loop goes on whatever a task raises, until it is told to stop; a thread that hangs in an
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
from agentlightning.runner.outcomes.source_line import SourceLine, innermost, is_waiting, stack_lines

log = logging.getLogger(__name__)
Awaited = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
STOP_SECONDS = 1.0
"""Seconds that what is left on a loop has to end, once it is told to stop."""


class AgentLoop:
    """Runs tasks until :meth:`stop`. To be used from the loop that made it."""

    def __init__(self) -> None:
        self._serving_loop = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._stopping = asyncio.Event()
        self._attempt_ids: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._ponged = True
        self.missed_pings = 0
        """Questions in a row that found the one before them unanswered."""
        self.tasks: set[AgentTask] = set()
        self.ended: asyncio.Future[None] = self._serving_loop.create_future()
        self._thread = threading.Thread(target=self._run, name="agl-agents", daemon=True)
        self._thread.start()

    def start(self, visit: AgentTask) -> None:
        """Run a visit here, unless it runs elsewhere already."""
        if visit.start_on(self._loop):
            self.tasks.add(visit)
            visit.done.add_done_callback(lambda _: self.tasks.discard(visit))

    def ping(self) -> None:
        """Ask for a sign of life, or note that the last question is still unanswered."""
        if not self._ponged:
            self.missed_pings += 1
            return
        self.missed_pings, self._ponged = 0, False
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._pong)

    def blocked_at(self) -> SourceLine | None:
        """The line that keeps the loop busy; ``None``: it waits for something to do."""
        frames = stack_lines(sys._current_frames().get(self._thread.ident or 0))
        return None if is_waiting(frames) else innermost(frames)

    def running_attempt(self) -> str | None:
        """The attempt whose code is running, if that can be told."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        own = next((visit.attempt_id for visit in self.tasks if visit.task is task), None)
        return own or self._attempt_ids.get(task)

    def stop(self) -> None:
        """Let it end as soon as it can: what it still runs is cancelled."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    def _pong(self) -> None:
        self._ponged = True

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Awaited, /, **given: Any
    ) -> asyncio.Task[Any]:
        """A task, with a note of the attempt that it works for."""
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
        with suppress(RuntimeError):  # home has ended
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
            for task in late:  # it was told to end, and is forgotten with the loop
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        await self._loop.shutdown_asyncgens()
