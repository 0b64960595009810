"""Where an agent runs, and for how long: in a worker process, on an event loop for agents, or on the runner's
own loop.

Invariant: an attempt ends when its time is up, even if its agent ignores being cancelled. Such an agent is
abandoned and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Execution:
    """Runs ``agent``: in the worker processes of ``pool``, if there is one; else on an event loop for agents;
    or, where ``own_loop`` is false, on the runner's own loop, which an agent may then block. ``counts``: as
    :attr:`.Runner.counts`.
    """

    agent: LitAgent[Any]
    counts: Counter[str]
    pool: WorkerPool | None = None
    own_loop: bool = True
    _stopped: set[str] = field(default_factory=set)
    """Rollouts that were stopped because another blocked their loop. Their next attempts run alone."""

    async def run(
        self, lease: AttemptedRollout, job: AttemptJob, timeout: float | None, spans: list[Span]
    ) -> AttemptResult:
        """Run one attempt, at most ``timeout`` seconds. Cancelled: the agent is stopped."""
        if self.pool is not None:
            worker = await self.pool.take()  # the time begins when a worker is free
            try:
                return await self._run_task(self.pool.run(worker, job, spans.append), job, timeout)
            finally:  # also if it is cancelled again while the agent is being stopped
                self.pool.give_back(worker)
        if self.own_loop:
            return await self._run_on_agent_loop(lease, job, timeout, spans)
        return await self._run_task(self._execute(job, spans), job, timeout)

    async def _run_task(
        self, work: Coroutine[Any, Any, AttemptResult], job: AttemptJob, timeout: float | None
    ) -> AttemptResult:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=timeout)
            return _result_of(task) if task.done() else AttemptResult(timed_out(timeout))
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)
            if not task.done():
                asyncio._unregister_task(task)  # so that the end of the loop does not wait for it
                self._count_abandoned(job.attempt_id)

    async def _execute(self, job: AttemptJob, spans: list[Span]) -> AttemptResult:
        return await execute(self.agent, job.rollout, job.context(spans.append), self.counts)

    def _count_abandoned(self, attempt_id: str) -> None:
        self.counts["abandoned"] += 1
        log.warning("attempt %s ended, but its agent ignores being cancelled", attempt_id)

    async def _run_on_agent_loop(
        self, lease: AttemptedRollout, job: AttemptJob, timeout: float | None, spans: list[Span]
    ) -> AttemptResult:
        def work() -> Coroutine[Any, Any, AttemptResult]:
            return self._execute(job, spans)

        rollout = lease.rollout
        agent_task = AgentTask(work, job.attempt_id, self.counts, retryable=_will_retry(lease))
        current_loop_pool().start(agent_task, alone=rollout.rollout_id in self._stopped)
        self._stopped.discard(rollout.rollout_id)
        try:
            await asyncio.wait({agent_task.done}, timeout=timeout)
            late = None if agent_task.done.done() else self._timed_out(agent_task, timeout)
        finally:
            await self._stop_on_loop(agent_task)
        if agent_task.stopped_for is not None:
            self.counts["stopped-for-another"] += 1
            self._stopped.add(rollout.rollout_id)
            return AttemptResult(_stopped_for_another(agent_task.stopped_for))
        return late or _result_of(agent_task.done)

    def _timed_out(self, agent_task: AgentTask, timeout: float | None) -> AttemptResult:
        """The time is up: the agent took too long, or its loop is blocked, by itself or by another."""
        blocked = current_loop_pool().blocked(agent_task)
        if blocked is None:
            return AttemptResult(timed_out(timeout))
        line, own = blocked
        if not own:
            agent_task.stop_for(line)
        return AttemptResult(timed_out(timeout, f"it blocks its event loop at {line}"))

    async def _stop_on_loop(self, agent_task: AgentTask) -> None:
        """Cancel the agent if it is at work; abandon its loop if it ignores that."""
        if agent_task.done.done():
            return
        agent_task.cancel()
        await asyncio.wait({agent_task.done}, timeout=CANCEL_SECONDS)
        if not agent_task.done.done():
            self._count_abandoned(agent_task.attempt_id)
            current_loop_pool().abandon(agent_task)


def _will_retry(lease: AttemptedRollout) -> bool:
    """Whether another attempt follows if this one is stopped."""
    config = lease.rollout.config
    again = "cancelled" in config.retry_on or AttemptStatus.FAILED in config.retry_condition
    return again and lease.attempt.sequence_id < config.max_attempts


def _stopped_for_another(line: SourceLine) -> Outcome:
    reason = f"cancelled: another rollout blocked their event loop at {line}; to fix it, {REMEDY}"
    return Outcome(AttemptStatus.FAILED, reason)


def _result_of(work: asyncio.Future[Any]) -> AttemptResult:
    if work.cancelled():
        return AttemptResult(outcome_of_error(asyncio.CancelledError()))
    result: AttemptResult | ExitRaised = work.result()
    return AttemptResult(outcome_of_error(result.error)) if isinstance(result, ExitRaised) else result
