"""An agent's run within its time limit: on an agents' loop, in a worker process, or on the runner's own loop.

Invariant: an attempt ends when its time is up, whatever its agent makes of being stopped. An agent that goes
on nevertheless is left behind and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from agentlightning.agents import LitAgent
from agentlightning.capture.context import AttemptContext
from agentlightning.runner.frames import Job
from agentlightning.runner.inside import Ended, execute
from agentlightning.runner.loops import MEND, agents_loops
from agentlightning.runner.outcome import Outcome, failed, overdue
from agentlightning.runner.place import Place
from agentlightning.runner.pool import Pool
from agentlightning.runner.visit import Broken, Visit
from agentlightning.types import AttemptedRollout, AttemptStatus, Span

log = logging.getLogger(__name__)
GRACE = 1.0
"""Seconds an agent has to unwind when it is cancelled."""


class Execution:
    """Runs ``agent``. ``pool``: the worker processes, if it runs in them. ``apart``: away from the runner's
    loop, where it could block what serves it. ``counts``: as :attr:`.Runner.ended`.
    """

    def __init__(
        self, agent: LitAgent[Any], counts: Counter[str], *, pool: Pool | None = None, apart: bool = True
    ) -> None:
        self._agent = agent
        self._counts = counts
        self._pool = pool
        self._apart = apart
        self._stopped: set[str] = set()
        """Rollouts that were stopped because another blocked their loop: the next time they run alone."""

    async def run(self, lease: AttemptedRollout, job: Job, timeout: float | None, spans: list[Span]) -> Ended:
        """Run one attempt, at most ``timeout`` seconds. Cancelled: the agent is stopped."""
        if self._pool is None and self._apart:
            return await self._on_agents_loop(lease, job, timeout, spans)
        child = await self._pool.take() if self._pool else None  # the clock starts when it can run
        if self._pool is not None and child is not None:
            work: asyncio.Task[Any] = asyncio.create_task(self._pool.run(child, job, spans.append))
        else:
            work = asyncio.create_task(self._execute(job, spans))
        try:
            await asyncio.wait({work}, timeout=timeout)
            return _result(work) if work.done() else Ended(overdue(timeout))
        finally:
            try:
                await self._end(work, job.attempt_id)
            finally:  # also where its lease is lost while it is being stopped
                if self._pool is not None and child is not None:
                    self._pool.give(child)

    async def _end(self, work: asyncio.Task[Any], attempt_id: str) -> None:
        """Stop a task, if it is still at work."""
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=GRACE)
        if not work.done():
            asyncio._unregister_task(work)  # so that the end of the loop does not wait for it
            self._abandoned(attempt_id)

    async def _execute(self, job: Job, spans: list[Span]) -> Ended:
        context = AttemptContext(
            rollout_id=job.rollout.rollout_id,
            attempt_id=job.attempt_id,
            sink=spans.append,
            key=job.key,
            gateway=job.gateway,
            policies=job.policies,
            resources=job.resources,
            task=job.rollout.input,
        )
        return await execute(self._agent, job.rollout, context, self._counts)

    def _abandoned(self, attempt_id: str) -> None:
        self._counts["abandoned"] += 1
        log.warning("attempt %s ended, but its agent ignores being cancelled", attempt_id)

    # ------------------------------------------------------------------------------ on an agents' loop
    async def _on_agents_loop(
        self, lease: AttemptedRollout, job: Job, timeout: float | None, spans: list[Span]
    ) -> Ended:
        def work() -> Coroutine[Any, Any, Ended]:
            return self._execute(job, spans)

        rollout = lease.rollout
        visit = Visit(work, job.attempt_id, self._counts, movable=_tried_again(lease))
        agents_loops().start(visit, alone=rollout.rollout_id in self._stopped)
        self._stopped.discard(rollout.rollout_id)
        try:
            await asyncio.wait({visit.done}, timeout=timeout)
            late = None if visit.done.done() else self._late(visit, timeout)
        finally:
            await self._leave(visit)
        if visit.stopped_for is not None:
            self._counts["stopped-for-another"] += 1
            self._stopped.add(rollout.rollout_id)
            return Ended(_for_another(visit.stopped_for))
        return late or _result(visit.done)

    def _late(self, visit: Visit, timeout: float | None) -> Ended:
        """The time is up: by the agent's own doing, or because another blocked its loop."""
        blocked = agents_loops().blocked(visit)
        if blocked is None:
            return Ended(overdue(timeout))
        place, own = blocked
        if not own:
            visit.stop_for(place)
        return Ended(overdue(timeout, f"it blocks its event loop at {place}"))

    async def _leave(self, visit: Visit) -> None:
        """Stop the agent, if it is still at work; leave it behind, if it will not end."""
        if visit.done.done():
            return
        visit.cancel()
        await asyncio.wait({visit.done}, timeout=GRACE)
        if not visit.done.done():
            self._abandoned(visit.attempt_id)
            agents_loops().leave(visit)


def _tried_again(lease: AttemptedRollout) -> bool:
    """Whether an attempt that is stopped will be followed by another."""
    config = lease.rollout.config
    again = "cancelled" in config.retry_on or AttemptStatus.FAILED in config.retry_condition
    return again and lease.attempt.sequence_id < config.max_attempts


def _for_another(place: Place) -> Outcome:
    reason = f"cancelled: another rollout blocked their event loop at {place}; to mend it, {MEND}"
    return Outcome(AttemptStatus.FAILED, reason)


def _result(work: asyncio.Future[Ended | Broken]) -> Ended:
    if work.cancelled():
        return Ended(failed(asyncio.CancelledError()))
    result = work.result()
    return Ended(failed(result.error)) if isinstance(result, Broken) else result
