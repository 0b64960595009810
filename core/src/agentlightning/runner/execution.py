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

from agentlightning.decorator.agents import LitAgent
from agentlightning.runner.event_loops.agent_task import AgentTask, ExitRaised
from agentlightning.runner.event_loops.loop_pool import REMEDY, current_loop_pool
from agentlightning.runner.execute import AttemptResult, execute
from agentlightning.runner.outcomes.outcome import Outcome, outcome_of_error, timed_out
from agentlightning.runner.outcomes.source_line import SourceLine
from agentlightning.runner.processes.messages import AttemptJob
from agentlightning.runner.processes.pool import WorkerPool
from agentlightning.types import AttemptedRollout, AttemptStatus, Span

log = logging.getLogger(__name__)
CANCEL_SECONDS = 1.0
"""Seconds an agent has to unwind when it is cancelled."""


class Execution:
    """Runs ``agent``. ``pool``: the worker processes, if it runs in them. ``own_loop``: away from the
    runner's loop, where it could block what serves it. ``counts``: as :attr:`.Runner.counts`.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        counts: Counter[str],
        *,
        pool: WorkerPool | None = None,
        own_loop: bool = True,
    ) -> None:
        self._agent = agent
        self._counts = counts
        self._pool = pool
        self._own_loop = own_loop
        self._stopped: set[str] = set()
        """Rollouts that were stopped because another blocked their loop: the next time they run alone."""

    async def run(
        self, lease: AttemptedRollout, job: AttemptJob, timeout: float | None, spans: list[Span]
    ) -> AttemptResult:
        """Run one attempt, at most ``timeout`` seconds. Cancelled: the agent is stopped."""
        if self._pool is None and self._own_loop:
            return await self._run_on_agent_loop(lease, job, timeout, spans)
        child = await self._pool.take() if self._pool else None  # the clock starts when it can run
        if self._pool is not None and child is not None:
            work: asyncio.Task[Any] = asyncio.create_task(self._pool.run(child, job, spans.append))
        else:
            work = asyncio.create_task(self._execute(job, spans))
        try:
            await asyncio.wait({work}, timeout=timeout)
            return _result_of(work) if work.done() else AttemptResult(timed_out(timeout))
        finally:
            try:
                await self._stop_task(work, job.attempt_id)
            finally:  # also where its lease is lost while it is being stopped
                if self._pool is not None and child is not None:
                    self._pool.give_back(child)

    async def _stop_task(self, work: asyncio.Task[Any], attempt_id: str) -> None:
        """Stop a task, if it is still at work."""
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=CANCEL_SECONDS)
        if not work.done():
            asyncio._unregister_task(work)  # so that the end of the loop does not wait for it
            self._count_abandoned(attempt_id)

    async def _execute(self, job: AttemptJob, spans: list[Span]) -> AttemptResult:
        return await execute(self._agent, job.rollout, job.context(spans.append), self._counts)

    def _count_abandoned(self, attempt_id: str) -> None:
        self._counts["abandoned"] += 1
        log.warning("attempt %s ended, but its agent ignores being cancelled", attempt_id)

    # ------------------------------------------------------------------------------ on an agents' loop
    async def _run_on_agent_loop(
        self, lease: AttemptedRollout, job: AttemptJob, timeout: float | None, spans: list[Span]
    ) -> AttemptResult:
        def work() -> Coroutine[Any, Any, AttemptResult]:
            return self._execute(job, spans)

        rollout = lease.rollout
        visit = AgentTask(work, job.attempt_id, self._counts, retryable=_will_retry(lease))
        current_loop_pool().start(visit, alone=rollout.rollout_id in self._stopped)
        self._stopped.discard(rollout.rollout_id)
        try:
            await asyncio.wait({visit.done}, timeout=timeout)
            late = None if visit.done.done() else self._timed_out(visit, timeout)
        finally:
            await self._stop_on_loop(visit)
        if visit.stopped_for is not None:
            self._counts["stopped-for-another"] += 1
            self._stopped.add(rollout.rollout_id)
            return AttemptResult(_stopped_for_another(visit.stopped_for))
        return late or _result_of(visit.done)

    def _timed_out(self, visit: AgentTask, timeout: float | None) -> AttemptResult:
        """The time is up: by the agent's own doing, or because another blocked its loop."""
        blocked = current_loop_pool().blocked(visit)
        if blocked is None:
            return AttemptResult(timed_out(timeout))
        place, own = blocked
        if not own:
            visit.stop_for(place)
        return AttemptResult(timed_out(timeout, f"it blocks its event loop at {place}"))

    async def _stop_on_loop(self, visit: AgentTask) -> None:
        """Stop the agent, if it is still at work; leave it behind, if it will not end."""
        if visit.done.done():
            return
        visit.cancel()
        await asyncio.wait({visit.done}, timeout=CANCEL_SECONDS)
        if not visit.done.done():
            self._count_abandoned(visit.attempt_id)
            current_loop_pool().abandon(visit)


def _will_retry(lease: AttemptedRollout) -> bool:
    """Whether an attempt that is stopped will be followed by another."""
    config = lease.rollout.config
    again = "cancelled" in config.retry_on or AttemptStatus.FAILED in config.retry_condition
    return again and lease.attempt.sequence_id < config.max_attempts


def _stopped_for_another(place: SourceLine) -> Outcome:
    reason = f"cancelled: another rollout blocked their event loop at {place}; to mend it, {REMEDY}"
    return Outcome(AttemptStatus.FAILED, reason)


def _result_of(work: asyncio.Future[AttemptResult | ExitRaised]) -> AttemptResult:
    if work.cancelled():
        return AttemptResult(outcome_of_error(asyncio.CancelledError()))
    result = work.result()
    return AttemptResult(outcome_of_error(result.error)) if isinstance(result, ExitRaised) else result
