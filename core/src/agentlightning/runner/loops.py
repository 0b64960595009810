"""Where agents run that are no worker processes: on event loops of their own, which the loop that serves
(*home*) watches.

Store, gateway and runner stay on home, so that an agent that blocks stops none of them. All rollouts that one
home serves share one agents' loop: a client, a lock or a semaphore that they share works as in any asyncio
program. That loop lives as long as home does.

A loop that does not answer is named by the line it stands at, once. After :data:`GIVEN_UP` seconds, or when
the attempt that blocks it has run out of time, it is left behind: later rollouts get another loop, and so do
those that had not begun. Those that had are stopped if they will be tried again; the others go on when it
answers.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from agentlightning.runner.agents_loop import LAST, AgentsLoop
from agentlightning.runner.place import Place
from agentlightning.runner.visit import Visit

log = logging.getLogger(__name__)
TICK = 0.25
"""Seconds between two questions to a loop."""
NAMED = 1.0
"""Seconds without an answer after which the line that blocks a loop is named."""
GIVEN_UP = 30.0
"""Seconds without an answer after which a loop is left behind."""
MEND = (
    "await the call's async form there (`await graph.ainvoke(…)`, AsyncOpenAI), or make the agent a plain "
    "`def` (each rollout then has a thread of its own), or set isolation: process"
)
_homes: WeakKeyDictionary[asyncio.AbstractEventLoop, Loops] = WeakKeyDictionary()


def agents_loops() -> Loops:
    """The agents' loops of the running loop."""
    home = asyncio.get_running_loop()
    if home not in _homes:
        _homes[home] = Loops()
    return _homes[home]


class Loops:
    """The agents' loops of one home: the shared one, those left behind, and those of single rollouts."""

    def __init__(self) -> None:
        self._shared: AgentsLoop | None = None
        self._others: set[AgentsLoop] = set()
        self._named: set[Place] = set()
        self._watching: asyncio.Task[None] | None = None

    def start(self, visit: Visit, *, alone: bool = False) -> None:
        """Run a visit: on the shared loop, or ``alone`` on one of its own."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch agents")
        if not alone:
            self._common().take(visit)
            return
        own = AgentsLoop()
        self._others.add(own)
        own.take(visit)

    def blocked(self, visit: Visit) -> tuple[Place, bool] | None:
        """The line that blocks the visit's loop just now, and whether it is the visit's own."""
        loop = self._loop_of(visit)
        if loop is None or loop.silent * TICK < NAMED or (place := loop.stands_at()) is None:
            return None
        return place, loop.runs() in (None, visit.attempt_id)

    def leave(self, visit: Visit) -> None:
        """The visit blocks its loop and will not end: let nobody else wait for it."""
        loop = self._loop_of(visit)
        if loop is not None and (place := loop.stands_at()) is not None:
            self._leave(loop, place, visit.attempt_id)

    def _common(self) -> AgentsLoop:
        if self._shared is None:
            self._shared = AgentsLoop()
        return self._shared

    def _all(self) -> list[AgentsLoop]:
        return [*([self._shared] if self._shared else []), *self._others]

    def _loop_of(self, visit: Visit) -> AgentsLoop | None:
        return next((loop for loop in self._all() if visit in loop.visits), None)

    # --------------------------------------------------------------------------------------- watching
    async def _watch(self) -> None:
        """Look after the loops until home ends, and end them with it."""
        try:
            while True:
                await asyncio.sleep(TICK)
                for loop in self._all():
                    loop.ask()
                    self._look(loop)
                for loop in [one for one in self._others if not one.visits]:
                    loop.stop()
                    self._others.discard(loop)
        finally:
            loops, self._shared, self._others = self._all(), None, set()
            for loop in loops:
                loop.stop()
            if loops:
                await asyncio.wait([loop.ended for loop in loops], timeout=2 * LAST)

    def _look(self, loop: AgentsLoop) -> None:
        silent = loop.silent * TICK
        if silent < NAMED or (place := loop.stands_at()) is None:
            return
        owner = loop.runs()
        self._name(loop, place, owner)
        if silent >= GIVEN_UP:
            self._leave(loop, place, owner)

    def _name(self, loop: AgentsLoop, place: Place, owner: str | None) -> None:
        """Say once where an agent blocks its loop, and how to mend it."""
        if place in self._named:
            return
        self._named.add(place)
        for visit in [v for v in loop.visits if v.attempt_id == owner] or [*loop.visits][:1]:
            visit.counts["loop-blocked"] += 1
        log.warning(
            "an agent blocks its event loop for over %g s, and the other rollouts on that loop wait: %s. To "
            "mend it, %s.",
            NAMED,
            place,
            MEND,
        )

    def _leave(self, loop: AgentsLoop, place: Place, owner: str | None) -> None:
        """Leave a loop behind, with what blocks it."""
        if loop is self._shared:
            self._shared = None
            self._others.add(loop)
            log.warning(
                "an event loop of agents is left behind, blocked at %s; further rollouts get another", place
            )
        for visit in [one for one in loop.visits if one.attempt_id != owner]:
            if visit.task is not None and visit.movable:
                visit.stop_for(place)
            elif visit.task is None:
                loop.visits.discard(visit)
                self._common().take(visit)
