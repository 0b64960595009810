"""The event loops of agents that run in this process.

Store, gateway and runner stay on the serving loop, so an agent that blocks stops none of them. All rollouts
of one serving loop share one agent loop, so a client, a lock or a semaphore that they share works as in any
asyncio program. An agent loop has a daemon thread of its own, and lives as long as the serving loop. A loop
on which an agent ignores being cancelled is left to it: later rollouts get another. Plugins may look closer
at what blocks a loop (hook ``agl_agent_loops``).

Invariants: a loop runs until it is stopped, even if a task raises SystemExit. A thread that hangs in an
agent's code does not keep the process from ending. A coroutine begins on at most one loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agentlightning.runner.threads import prepare_agent_loop

log = logging.getLogger(__name__)
STOP_SECONDS = 1.0
"""Seconds that the tasks left on a stopped loop have to end."""


class AgentTask:
    """The coroutine of one agent, which ``work`` makes, as the serving loop sees it. Methods are called from
    the serving loop.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.work = work
        self._serving_loop = asyncio.get_running_loop()
        self.start: Future[None] = Future()
        """The start on the present loop. Who cancels it before it runs keeps the coroutine from beginning
        there."""
        self.home: AgentLoop | None = None
        """The loop of agents on which the coroutine begins."""
        self.task: asyncio.Task[Any] | None = None
        """The asyncio task, once the coroutine has begun."""
        self.done: asyncio.Future[None] = self._serving_loop.create_future()
        """Resolved when ``task`` has ended; cancelled if it never began, or is not waited for."""

    def begin(self, start: Future[None]) -> None:
        """Begin, in the thread of a loop of agents, unless this start was cancelled."""
        if start.set_running_or_notify_cancel():
            self.task = asyncio.get_running_loop().create_task(self.work())
            self.task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine; ``done`` is resolved when it has ended."""
        if self.start.cancel():
            self.done.cancel()
        elif self.home is not None:
            self.home.call(lambda: self.task and self.task.cancel())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        with suppress(RuntimeError):  # the serving loop is closed, and the attempt has ended with it
            self._serving_loop.call_soon_threadsafe(self._resolve, task)

    def _resolve(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # nobody else may ask for it
        if not self.done.done():
            self.done.set_result(None)


class AgentLoop:
    """Runs tasks until :meth:`stop`. Its methods are called from the serving loop, which made it. ``shared``:
    new rollouts run here too.
    """

    def __init__(self, *, shared: bool = True) -> None:
        self.shared = shared
        self.ended = asyncio.Event()
        self._serving_loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.loop = self.make_loop()
        self.thread = threading.Thread(target=self._run, name="agl-agents", daemon=True)
        self.thread.start()

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop."""
        return asyncio.new_event_loop()

    def start(self, agent_task: AgentTask) -> None:
        """Run a task here that has begun nowhere."""
        agent_task.start, agent_task.home = Future(), self
        self.loop.call_soon_threadsafe(self.begin, agent_task, agent_task.start)

    def call(self, work: Callable[..., object], *args: Any) -> None:
        """Call ``work`` in the loop's thread, unless the loop has ended."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *args)

    def stop(self) -> None:
        """Cancel the tasks left on the loop and end it."""
        self.call(self._stopping.set)

    # ------------------------------------------------------------------------------- in the loop's thread
    def begin(self, agent_task: AgentTask, start: Future[None]) -> None:
        """Begin a task."""
        agent_task.begin(start)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        serving = self.loop.create_task(self._serve())
        while not serving.done():
            try:
                self.loop.run_until_complete(serving)
            except BaseException as error:  # a task raised SystemExit, say, or an agent stopped the loop
                log.warning("an agent broke out of its event loop with %r; the loop goes on", error)
        self.loop.close()
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
        await self.loop.shutdown_asyncgens()


async def end_loops(loops: Sequence[AgentLoop]) -> None:
    """End loops of agents, and give them some time for it."""
    for loop in loops:
        loop.stop()
    with suppress(TimeoutError):
        async with asyncio.timeout(2 * STOP_SECONDS):
            for loop in loops:
                await loop.ended.wait()


_kept: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[list[AgentLoop], asyncio.Task[None]]] = (
    WeakKeyDictionary()
)
"""Serving loop → its agent loops, the shared one last, and what ends them with it."""


def shared_loop() -> AgentLoop:
    """Return the agent loop of the running loop, which is its serving loop."""
    serving_loop = asyncio.get_running_loop()
    loops, keeping = _kept.get(serving_loop, ([], None))
    if keeping is None or keeping.done():
        loops = []
        _kept[serving_loop] = loops, asyncio.create_task(_keep(loops), name="keep agents")
    if not loops or not loops[-1].shared:
        loops.append(AgentLoop())
    return loops[-1]


async def _keep(loops: list[AgentLoop]) -> None:
    """Wait until the serving loop ends, and end the loops with it."""
    try:
        await asyncio.Event().wait()
    finally:
        await end_loops(loops)
