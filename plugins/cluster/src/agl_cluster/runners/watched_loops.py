"""The watchdog over the event loops of agents that run in this process.

It pings each loop. A loop that does not answer is reported once, with the line that blocks it, if the same
function of the same agent ran each time: many agents that each take a little block nothing by one line, nor
does a machine that is busy.
After :data:`ABANDON_AFTER` seconds, or when the attempt that blocks it has timed out, the loop is abandoned:
later rollouts, and those that had not begun, run on a new loop. Begun rollouts that will be retried are
stopped; other begun rollouts go on when the loop answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from agentlightning.capture.context import current_attempt
from agentlightning.runner.agent_loops import AgentLoop, AgentTask, end_loops
from agentlightning.runner.execution import Work, outcome_of, stopped
from agentlightning.runner.outcome import Outcome, timed_out
from agentlightning.runner.tracebacks import SourceLine, innermost_user_line, is_user_code
from agentlightning.types import AttemptedRollout, AttemptStatus

log = logging.getLogger(__name__)
Awaited = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
PING_SECONDS = 0.25
"""Seconds between two pings of a loop."""
WARN_AFTER = 1.0
"""Seconds without an answer after which the line that blocks a loop is reported."""
LATE_AFTER = 0.25
"""Seconds by which a ping is later than it should be on a machine that is busy."""
ABANDON_AFTER = 30.0
"""Seconds without an answer after which a loop is abandoned."""
REMEDY = (
    "await the call's async form there (`await graph.ainvoke(…)`, AsyncOpenAI), or make the agent a plain "
    "`def` (each rollout then has a thread of its own), or set isolation: process"
)
_IDLE = {("selectors.py", "select"), ("base_events.py", "_run_once")}
"""Innermost frames of an event loop that is idle."""


def busy_line(top: FrameType | None) -> SourceLine | None:
    """Return the line that a thread is at, the agent's if it can be; ``None`` if it has ended, or if its
    event loop waits for events.
    """
    walked = () if top is None else traceback.walk_stack(top)
    frames = [SourceLine(one.f_code.co_filename, line, one.f_code.co_name) for one, line in walked][::-1]
    if not frames or (os.path.basename(frames[-1].file), frames[-1].function) in _IDLE:
        return None
    return innermost_user_line(frames)


class WatchedTask(AgentTask):
    """The coroutine of one attempt. A loop that it blocks is counted in ``counts``. ``retryable``: a new
    attempt follows if this one is stopped because another attempt blocks their loop.
    """

    def __init__(self, work: Work, lease: AttemptedRollout, counts: Counter[str]) -> None:
        super().__init__(work)
        config, attempt = lease.rollout.config, lease.attempt
        again = "cancelled" in config.retry_on or AttemptStatus.FAILED in config.retry_condition
        self.retryable = again and attempt.sequence_id < config.max_attempts
        self.attempt_id, self.counts = attempt.attempt_id, counts
        self.watched: WatchedLoop | None = None
        """Its loop."""
        self.stopped_for: SourceLine | None = None
        """The line at which another attempt blocked the loop, if this attempt was stopped for it."""

    def stop_for(self, line: SourceLine) -> None:
        """Stop without waiting, because another attempt blocks the loop at ``line``."""
        if not self.done.done():
            self.stopped_for = line
            self.cancel()
            self.done.cancel()


class WatchedLoop(AgentLoop):
    """A loop of agents that can say what blocks it."""

    def __init__(self, *, shared: bool) -> None:
        self.missed_pings = 0
        """Pings in a row that came before the last one was answered."""
        self.suspect: tuple[str | None, str, str] | None = None
        """Attempt, file and function of the agent's code that ran at the last missed ping."""
        self.suspected = 0
        """Missed pings in a row that found this suspect. Others were the load of many, or of the machine."""
        self.tasks: set[WatchedTask] = set()
        self._attempt_ids: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._answered = True
        super().__init__(shared=shared)

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop that notes the attempt of each of its tasks."""
        loop = super().make_loop()
        loop.set_task_factory(self._make_task)
        return loop

    def watch(self, task: WatchedTask) -> None:
        """Run a task here that has begun nowhere."""
        task.watched = self
        self.tasks.add(task)
        task.done.add_done_callback(lambda _: self.tasks.discard(task))
        self.start(task)

    def ping(self, *, late: bool = False) -> None:
        """Ping the loop, or count that it has not answered the last ping yet. ``late``: the ping comes later
        than it should, so the machine is busy and nobody in particular is suspected.
        """
        if self._answered:
            self.missed_pings, self.suspected, self._answered = 0, 0, False
            self.call(self._answer)
            return
        self.missed_pings += 1
        line = self.blocked_at()
        found = None
        if line is not None and is_user_code(line.file) and not late:
            found = (self.running_attempt(), line.file, line.function)
        self.suspected = 0 if found is None else self.suspected + 1 if found == self.suspect else 1
        self.suspect = found

    def blocked_at(self) -> SourceLine | None:
        """Return the line that keeps the loop busy; ``None`` if the loop is idle."""
        return busy_line(sys._current_frames().get(self.thread.ident or 0))

    def blocking_line(self) -> SourceLine | None:
        """Return the line that has blocked the loop for :data:`WARN_AFTER` seconds, if there is one."""
        return self.blocked_at() if self.missed_pings * PING_SECONDS >= WARN_AFTER else None

    def running_attempt(self) -> str | None:
        """Return the attempt whose code is running, if it is known."""
        task = asyncio.current_task(self.loop)
        return None if task is None else self._attempt_ids.get(task)

    # ------------------------------------------------------------------------------- in the loop's thread
    def _answer(self) -> None:
        self._answered = True

    def begin(self, agent_task: AgentTask, start: Future[None]) -> None:
        """Begin a task, and note its attempt."""
        super().begin(agent_task, start)
        if isinstance(agent_task, WatchedTask) and agent_task.task is not None:
            self._attempt_ids[agent_task.task] = agent_task.attempt_id

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Awaited, /, **given: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **given)
        context = current_attempt()
        if context is not None:
            self._attempt_ids[task] = context.attempt_id
        return task


class LoopPool:
    """The agent loops of one serving loop: a shared loop, abandoned loops, and loops of single rollouts."""

    def __init__(self) -> None:
        self._loops: list[WatchedLoop] = []
        self._alone: set[str] = set()
        """Rollouts that were stopped because another blocked their loop. Their next attempts run alone."""
        self._warned: set[SourceLine] = set()
        self._watching: asyncio.Task[None] | None = None

    async def run(
        self, work: Work, lease: AttemptedRollout, timeout: float | None, counts: Counter[str]
    ) -> Outcome:
        """Run one attempt for at most ``timeout`` seconds."""
        rollout_id, task = lease.rollout.rollout_id, WatchedTask(work, lease, counts)
        self.start(task, alone=rollout_id in self._alone)
        self._alone.discard(rollout_id)
        late: Outcome | None = None
        try:
            await asyncio.wait({task.done}, timeout=timeout)
            if not task.done.done():
                late = timed_out(timeout)
                loop = task.watched
                if loop is not None and (line := loop.blocking_line()) is not None:
                    late = timed_out(timeout, f"it blocks its event loop at {line}")
                    if loop.running_attempt() not in (None, task.attempt_id):
                        task.stop_for(line)  # another attempt blocks it: this one is not waited for
        finally:
            if not await stopped(task.done, task.cancel, lease, counts):
                loop = task.watched
                if loop is not None and (line := loop.blocked_at()) is not None:
                    self._abandon(loop, line, task.attempt_id)
        if (stopped_for := task.stopped_for) is not None:
            counts["stopped-for-another"] += 1
            self._alone.add(rollout_id)
            where = f"another rollout blocked their event loop at {stopped_for}"
            return Outcome(AttemptStatus.FAILED, f"cancelled: {where}; to fix it, {REMEDY}")
        return late or outcome_of(task.task or task.done)

    def start(self, task: WatchedTask, *, alone: bool = False) -> None:
        """Run a task on the shared loop, or ``alone`` on a loop of its own."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch agents")
        loop = None if alone else next((one for one in self._loops if one.shared), None)
        if loop is None:
            loop = WatchedLoop(shared=not alone)
            self._loops.append(loop)
        loop.watch(task)

    # --------------------------------------------------------------------------------------- watching
    async def _watch(self) -> None:
        """Ping the loops until the serving loop ends, and end them with it."""
        try:
            while True:
                due = time.monotonic() + PING_SECONDS + LATE_AFTER
                await asyncio.sleep(PING_SECONDS)
                late = time.monotonic() > due
                for loop in [*self._loops]:
                    loop.ping(late=late)
                    self._check(loop)
                    if not loop.shared and not loop.tasks:
                        loop.stop()
                        self._loops.remove(loop)
        finally:
            loops, self._loops = self._loops, []
            await end_loops(loops)

    def _check(self, loop: WatchedLoop) -> None:
        """Report a loop that is blocked, and abandon it after :data:`ABANDON_AFTER` seconds."""
        if (line := loop.blocking_line()) is None:
            return
        owner = loop.running_attempt()
        if loop.suspected * PING_SECONDS >= WARN_AFTER and is_user_code(line.file):
            self._warn_once(loop, line, owner)
        if loop.missed_pings * PING_SECONDS >= ABANDON_AFTER:
            self._abandon(loop, line, owner)

    def _warn_once(self, loop: WatchedLoop, line: SourceLine, owner: str | None) -> None:
        """Report once the line at which an agent blocks its loop, and the remedy."""
        if line in self._warned:
            return
        self._warned.add(line)
        for task in [one for one in loop.tasks if one.attempt_id == owner] or [*loop.tasks][:1]:
            task.counts["loop-blocked"] += 1
        log.warning(
            "an agent blocks its event loop for over %g s, and the other rollouts on that loop wait: %s. To "
            "fix it, %s.",
            WARN_AFTER,
            line,
            REMEDY,
        )

    def _abandon(self, loop: WatchedLoop, line: SourceLine, owner: str | None) -> None:
        """Abandon a loop, and take from it the tasks that need not wait for it."""
        if loop.shared:
            loop.shared = False
            log.warning(
                "an event loop of agents is abandoned, blocked at %s; further rollouts get another", line
            )
        for task in [one for one in loop.tasks if one.attempt_id != owner]:
            if task.start.cancel():
                loop.tasks.discard(task)
                self.start(task)
            elif task.retryable:
                task.stop_for(line)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = WeakKeyDictionary()


def current_loop_pool() -> LoopPool:
    """Return the agent loops of the running loop, which is their serving loop."""
    return _pools.setdefault(asyncio.get_running_loop(), LoopPool())


async def run_watched(
    work: Work, lease: AttemptedRollout, timeout: float | None, counts: Counter[str]
) -> Outcome:
    """Run one attempt on the agent loops of the running loop (``runner.execution.RunOnLoop``)."""
    return await current_loop_pool().run(work, lease, timeout, counts)
