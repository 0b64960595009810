"""The event loops of agents that run in this process, and the watchdog over them.

Store, gateway and runner stay on the serving loop, so an agent that blocks stops none of them. All rollouts
of one serving loop share one agent loop, so a client, a lock or a semaphore that they share works as in any
asyncio program. The agent loop lives as long as the serving loop.

The watchdog pings each loop. A loop that does not answer is reported once, with the line that blocks it, if
the same function of the same agent ran each time: many agents that each take a little block nothing by one
line, nor does a machine that is busy.
After :data:`ABANDON_AFTER` seconds, or when the attempt that blocks it has timed out, the loop is abandoned:
later rollouts, and those that had not begun, run on a new loop. Begun rollouts that will be retried are
stopped; other begun rollouts go on when the loop answers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from weakref import WeakKeyDictionary

from agentlightning.runner.event_loops.agent_loop import STOP_SECONDS, AgentLoop, AgentTask
from agentlightning.runner.outcomes.tracebacks import SourceLine, is_user_code

log = logging.getLogger(__name__)
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
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = WeakKeyDictionary()


def current_loop_pool() -> LoopPool:
    """Return the agent loops of the running loop, which is their serving loop."""
    serving_loop = asyncio.get_running_loop()
    if serving_loop not in _pools:
        _pools[serving_loop] = LoopPool()
    return _pools[serving_loop]


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
        loop = self._loop_of(agent_task)
        if loop is None or (line := _blocking_line(loop)) is None:
            return None
        return line, loop.running_attempt() in (None, agent_task.attempt_id)

    def abandon(self, agent_task: AgentTask) -> None:
        """Abandon the loop of a task that blocks it and ignores being cancelled."""
        loop = self._loop_of(agent_task)
        if loop is not None and (line := loop.blocked_at()) is not None:
            self._abandon(loop, line, agent_task.attempt_id)

    def _loop_of(self, agent_task: AgentTask) -> AgentLoop | None:
        return next((loop for loop in self._loops if agent_task in loop.tasks), None)

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
        if (line := _blocking_line(loop)) is None:
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
            if agent_task.task is None:
                loop.tasks.discard(agent_task)
                self.start(agent_task)
            elif agent_task.retryable:
                agent_task.stop_for(line)


def _blocking_line(loop: AgentLoop) -> SourceLine | None:
    """Return the line that has blocked a loop for :data:`WARN_AFTER` seconds, if there is one."""
    return loop.blocked_at() if loop.missed_pings * PING_SECONDS >= WARN_AFTER else None
