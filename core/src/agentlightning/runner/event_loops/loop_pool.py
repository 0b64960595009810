"""Where agents run that are no worker processes: on event loops of their own, which the loop that serves
(*home*) watches.

Store, gateway and runner stay on home, so that an agent that blocks stops none of them. All rollouts that one
home serves share one agents' loop: a client, a lock or a semaphore that they share works as in any asyncio
program. That loop lives as long as home does.

A loop that does not answer is reported once, with its line. After :data:`ABANDON_AFTER` seconds, or when
the attempt that blocks it has run out of time, it is left behind: later rollouts get another loop, and so do
those that had not begun. Those that had are stopped if they will be tried again; the others go on when it
answers.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from agentlightning.runner.event_loops.agent_loop import STOP_SECONDS, AgentLoop
from agentlightning.runner.event_loops.agent_task import AgentTask
from agentlightning.runner.outcomes.source_line import SourceLine

log = logging.getLogger(__name__)
PING_SECONDS = 0.25
"""Seconds between two questions to a loop."""
WARN_AFTER = 1.0
"""Seconds without an answer after which the line that blocks a loop is named."""
ABANDON_AFTER = 30.0
"""Seconds without an answer after which a loop is left behind."""
REMEDY = (
    "await the call's async form there (`await graph.ainvoke(…)`, AsyncOpenAI), or make the agent a plain "
    "`def` (each rollout then has a thread of its own), or set isolation: process"
)
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = WeakKeyDictionary()


def current_loop_pool() -> LoopPool:
    """The agents' loops of the running loop."""
    home = asyncio.get_running_loop()
    if home not in _pools:
        _pools[home] = LoopPool()
    return _pools[home]


class LoopPool:
    """The agents' loops of one home: the shared one, those left behind, and those of single rollouts."""

    def __init__(self) -> None:
        self._shared: AgentLoop | None = None
        self._others: set[AgentLoop] = set()
        self._warned: set[SourceLine] = set()
        self._watching: asyncio.Task[None] | None = None

    def start(self, visit: AgentTask, *, alone: bool = False) -> None:
        """Run a visit: on the shared loop, or ``alone`` on one of its own."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch agents")
        if not alone:
            self._shared_loop().start(visit)
            return
        own = AgentLoop()
        self._others.add(own)
        own.start(visit)

    def blocked(self, visit: AgentTask) -> tuple[SourceLine, bool] | None:
        """The line that blocks the visit's loop just now, and whether it is the visit's own."""
        loop = self._loop_of(visit)
        if (
            loop is None
            or loop.missed_pings * PING_SECONDS < WARN_AFTER
            or (place := loop.blocked_at()) is None
        ):
            return None
        return place, loop.running_attempt() in (None, visit.attempt_id)

    def abandon(self, visit: AgentTask) -> None:
        """The visit blocks its loop and will not end: let nobody else wait for it."""
        loop = self._loop_of(visit)
        if loop is not None and (place := loop.blocked_at()) is not None:
            self._abandon(loop, place, visit.attempt_id)

    def _shared_loop(self) -> AgentLoop:
        if self._shared is None:
            self._shared = AgentLoop()
        return self._shared

    def _all(self) -> list[AgentLoop]:
        return [*([self._shared] if self._shared else []), *self._others]

    def _loop_of(self, visit: AgentTask) -> AgentLoop | None:
        return next((loop for loop in self._all() if visit in loop.tasks), None)

    # --------------------------------------------------------------------------------------- watching
    async def _watch(self) -> None:
        """Look after the loops until home ends, and end them with it."""
        try:
            while True:
                await asyncio.sleep(PING_SECONDS)
                for loop in self._all():
                    loop.ping()
                    self._check(loop)
                for loop in [one for one in self._others if not one.tasks]:
                    loop.stop()
                    self._others.discard(loop)
        finally:
            loops, self._shared, self._others = self._all(), None, set()
            for loop in loops:
                loop.stop()
            if loops:
                await asyncio.wait([loop.ended for loop in loops], timeout=2 * STOP_SECONDS)

    def _check(self, loop: AgentLoop) -> None:
        silent = loop.missed_pings * PING_SECONDS
        if silent < WARN_AFTER or (place := loop.blocked_at()) is None:
            return
        owner = loop.running_attempt()
        self._warn_once(loop, place, owner)
        if silent >= ABANDON_AFTER:
            self._abandon(loop, place, owner)

    def _warn_once(self, loop: AgentLoop, place: SourceLine, owner: str | None) -> None:
        """Say once where an agent blocks its loop, and how to mend it."""
        if place in self._warned:
            return
        self._warned.add(place)
        for visit in [v for v in loop.tasks if v.attempt_id == owner] or [*loop.tasks][:1]:
            visit.counts["loop-blocked"] += 1
        log.warning(
            "an agent blocks its event loop for over %g s, and the other rollouts on that loop wait: %s. To "
            "mend it, %s.",
            WARN_AFTER,
            place,
            REMEDY,
        )

    def _abandon(self, loop: AgentLoop, place: SourceLine, owner: str | None) -> None:
        """Leave a loop behind, with what blocks it."""
        if loop is self._shared:
            self._shared = None
            self._others.add(loop)
            log.warning(
                "an event loop of agents is left behind, blocked at %s; further rollouts get another", place
            )
        for visit in [one for one in loop.tasks if one.attempt_id != owner]:
            if visit.task is not None and visit.retryable:
                visit.stop_for(place)
            elif visit.task is None:
                loop.tasks.discard(visit)
                self._shared_loop().start(visit)
