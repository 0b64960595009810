"""The event loops of agents that run in this process, and the watchdog over them.

Store, gateway and runner stay on the serving loop, so an agent that blocks stops none of them. All rollouts
of one serving loop share one agent loop, so a client, a lock or a semaphore that they share works as in any
asyncio program. An agent loop has a daemon thread of its own, and lives as long as the serving loop.

The watchdog pings each loop. A loop that does not answer is reported once, with the line that blocks it, if
the same function of the same agent ran each time: many agents that each take a little block nothing by one
line, nor does a machine that is busy.
After :data:`ABANDON_AFTER` seconds, or when the attempt that blocks it has timed out, the loop is abandoned:
later rollouts, and those that had not begun, run on a new loop. Begun rollouts that will be retried are
stopped; other begun rollouts go on when the loop answers.

Invariants: a loop runs until it is stopped, even if a task raises SystemExit. A thread that hangs in an
agent's code does not keep the process from ending. A coroutine begins on at most one loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agentlightning.capture.context import current_attempt
from agentlightning.runner.threads import prepare_agent_loop
from agentlightning.runner.tracebacks import SourceLine, busy_line, is_user_code

log = logging.getLogger(__name__)
Awaited = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
STOP_SECONDS = 1.0
"""Seconds that the tasks left on a stopped loop have to end."""
PING_SECONDS = 0.25
"""Seconds between two pings of a loop."""
WARN_AFTER = 1.0
"""Seconds without an answer after which the line that blocks a loop is reported."""
ABANDON_AFTER = 30.0
"""Seconds without an answer after which a loop is abandoned."""
REMEDY = (
    "await the call's async form there (`await graph.ainvoke(…)`, AsyncOpenAI), or make the agent a plain "
    "`def` (each rollout then has a thread of its own), or set isolation: process"
)


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
        self.work, self.attempt_id, self.counts, self.retryable = work, attempt_id, counts, retryable
        self._serving_loop = asyncio.get_running_loop()
        self.start: Future[None] = Future()
        """The start on the present loop. Who cancels it before it runs keeps the coroutine from beginning
        there."""
        self.home: AgentLoop | None = None
        """The loop of agents on which the coroutine begins."""
        self.task: asyncio.Task[Any] | None = None
        """The asyncio task, once the coroutine has begun."""
        self.stopped_for: SourceLine | None = None
        """The line at which another attempt blocked the loop, if this attempt was stopped for it."""
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
        if not task.cancelled():
            task.exception()  # nobody else may ask for it
        if not self.done.done():
            self.done.set_result(None)


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
        """Run a task here that has begun nowhere."""
        agent_task.start, agent_task.home = Future(), self
        self.tasks.add(agent_task)
        agent_task.done.add_done_callback(lambda _: self.tasks.discard(agent_task))
        self._loop.call_soon_threadsafe(self._begin, agent_task, agent_task.start)

    def call(self, work: Callable[..., object], *args: Any) -> None:
        """Call ``work`` in the loop's thread, unless the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)

    def ping(self) -> None:
        """Ping the loop, or count that it has not answered the last ping yet."""
        if self._answered:
            self.missed_pings, self.suspected, self._answered = 0, 0, False
            self.call(self._answer)
            return
        self.missed_pings += 1
        line = self.blocked_at()
        found = None
        if line is not None and is_user_code(line.file):
            found = (self.running_attempt(), line.file, line.function)
        self.suspected = 0 if found is None else self.suspected + 1 if found == self.suspect else 1
        self.suspect = found

    def blocked_at(self) -> SourceLine | None:
        """Return the line that keeps the loop busy; ``None`` if the loop is idle."""
        return busy_line(sys._current_frames().get(self._thread.ident or 0))

    def blocking_line(self) -> SourceLine | None:
        """Return the line that has blocked the loop for :data:`WARN_AFTER` seconds, if there is one."""
        return self.blocked_at() if self.missed_pings * PING_SECONDS >= WARN_AFTER else None

    def running_attempt(self) -> str | None:
        """Return the attempt whose code is running, if it is known."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._attempt_ids.get(task)

    def stop(self) -> None:
        """Cancel the tasks left on the loop and end it."""
        self.call(self._stopping.set)

    # ------------------------------------------------------------------------------- in the loop's thread
    def _answer(self) -> None:
        self._answered = True

    def _begin(self, agent_task: AgentTask, start: Future[None]) -> None:
        agent_task.begin(start)
        if agent_task.task is not None:
            self._attempt_ids[agent_task.task] = agent_task.attempt_id

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


class LoopPool:
    """The agent loops of one serving loop: a shared loop, abandoned loops, and loops of single rollouts."""

    def __init__(self) -> None:
        self._loops: list[AgentLoop] = []
        self._warned: set[SourceLine] = set()
        self._watching: asyncio.Task[None] | None = None

    def start(self, agent_task: AgentTask, *, alone: bool = False) -> None:
        """Run a task on the shared loop, or ``alone`` on a loop of its own."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch agents")
        loop = None if alone else next((one for one in self._loops if one.shared), None)
        if loop is None:
            loop = AgentLoop(shared=not alone)
            self._loops.append(loop)
        loop.start(agent_task)

    def blocked(self, agent_task: AgentTask) -> tuple[SourceLine, bool] | None:
        """Return the line that blocks the task's loop at present, and whether the task itself runs it."""
        loop = agent_task.home
        if loop is None or (line := loop.blocking_line()) is None:
            return None
        return line, loop.running_attempt() in (None, agent_task.attempt_id)

    def abandon(self, agent_task: AgentTask) -> None:
        """Abandon the loop of a task that blocks it and ignores being cancelled."""
        loop = agent_task.home
        if loop is not None and (line := loop.blocked_at()) is not None:
            self._abandon(loop, line, agent_task.attempt_id)

    # --------------------------------------------------------------------------------------- watching
    async def _watch(self) -> None:
        """Ping the loops until the serving loop ends, and end them with it."""
        try:
            while True:
                await asyncio.sleep(PING_SECONDS)
                for loop in [*self._loops]:
                    loop.ping()
                    self._check(loop)
                    if not loop.shared and not loop.tasks:
                        loop.stop()
                        self._loops.remove(loop)
        finally:
            loops, self._loops = self._loops, []
            for loop in loops:
                loop.stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * STOP_SECONDS):
                    for loop in loops:
                        await loop.ended.wait()

    def _check(self, loop: AgentLoop) -> None:
        """Report a loop that is blocked, and abandon it after :data:`ABANDON_AFTER` seconds."""
        if (line := loop.blocking_line()) is None:
            return
        owner = loop.running_attempt()
        if loop.suspected * PING_SECONDS >= WARN_AFTER and is_user_code(line.file):
            self._warn_once(loop, line, owner)
        if loop.missed_pings * PING_SECONDS >= ABANDON_AFTER:
            self._abandon(loop, line, owner)

    def _warn_once(self, loop: AgentLoop, line: SourceLine, owner: str | None) -> None:
        """Report once the line at which an agent blocks its loop, and the remedy."""
        if line in self._warned:
            return
        self._warned.add(line)
        for agent_task in [v for v in loop.tasks if v.attempt_id == owner] or [*loop.tasks][:1]:
            agent_task.counts["loop-blocked"] += 1
        log.warning(
            "an agent blocks its event loop for over %g s, and the other rollouts on that loop wait: %s. To "
            "fix it, %s.",
            WARN_AFTER,
            line,
            REMEDY,
        )

    def _abandon(self, loop: AgentLoop, line: SourceLine, owner: str | None) -> None:
        """Abandon a loop, and take from it the tasks that need not wait for it."""
        if loop.shared:
            loop.shared = False
            log.warning(
                "an event loop of agents is abandoned, blocked at %s; further rollouts get another", line
            )
        for agent_task in [one for one in loop.tasks if one.attempt_id != owner]:
            if agent_task.start.cancel():
                loop.tasks.discard(agent_task)
                self.start(agent_task)
            elif agent_task.retryable:
                agent_task.stop_for(line)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = WeakKeyDictionary()


def current_loop_pool() -> LoopPool:
    """Return the agent loops of the running loop, which is their serving loop."""
    serving_loop = asyncio.get_running_loop()
    if serving_loop not in _pools:
        _pools[serving_loop] = LoopPool()
    return _pools[serving_loop]
