"""Chooses where an agent runs, and keeps its time: in a worker process, on an event loop for agents, or on
the runner's own loop.

Invariant: an attempt ends when its time is up, even if its agent ignores being cancelled. Such an agent is
abandoned and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from agentlightning.runner.agent.execute import execute
from agentlightning.runner.agent.hosted import HostedAgent
from agentlightning.runner.event_loops.agent_loop import AgentTask
from agentlightning.runner.event_loops.loop_pool import REMEDY, current_loop_pool
from agentlightning.runner.outcomes.outcome import Outcome, outcome_of_error, timed_out
from agentlightning.runner.processes.messages import AttemptJob
from agentlightning.runner.processes.pool import WorkerPool
from agentlightning.types import AttemptedRollout, AttemptStatus, Span

log = logging.getLogger(__name__)
CANCEL_SECONDS = 1.0
"""Seconds that a cancelled agent has to end."""


@dataclass(slots=True)
class Execution:
    """Runs ``agent``: in the worker processes of ``pool``, if there is one; else on an event loop for agents;
    or, if ``own_loop`` is false, on the runner's own loop, which an agent may then block. ``counts``:
    :attr:`.Runner.counts`.
    """

    agent: HostedAgent
    counts: Counter[str]
    pool: WorkerPool | None = None
    own_loop: bool = True
    _stopped: set[str] = field(default_factory=set)
    """Rollouts that were stopped because another blocked their loop. Their next attempts run alone."""

    async def run(
        self, lease: AttemptedRollout, job: AttemptJob, timeout: float | None, spans: list[Span]
    ) -> Outcome:
        """Run one attempt for at most ``timeout`` seconds. Cancellation stops the agent."""
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
        self, work: Coroutine[Any, Any, Outcome], job: AttemptJob, timeout: float | None
    ) -> Outcome:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=timeout)
            return _outcome_of(task) if task.done() else timed_out(timeout)
        finally:
            if not await self._stop(task, task.cancel, job.attempt_id):
                asyncio._unregister_task(task)  # so that the end of the loop does not wait for it

    async def _execute(self, job: AttemptJob, spans: list[Span]) -> Outcome:
        return await execute(self.agent, job.rollout, job.context(spans.append), self.counts)

    async def _stop(self, work: asyncio.Future[Any], cancel: Callable[[], object], attempt_id: str) -> bool:
        """Cancel the agent if it runs, and return whether it has ended. An agent that has not is counted."""
        if work.done():
            return True
        cancel()
        await asyncio.wait({work}, timeout=CANCEL_SECONDS)
        if not work.done():
            self.counts["abandoned"] += 1
            log.warning("attempt %s ended, but its agent ignores being cancelled", attempt_id)
        return work.done()

    async def _run_on_agent_loop(
        self, lease: AttemptedRollout, job: AttemptJob, timeout: float | None, spans: list[Span]
    ) -> Outcome:
        async def work() -> Outcome:
            try:
                return await self._execute(job, spans)
            except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:  # it would end the loop
                return outcome_of_error(error)

        rollout_id, loops = lease.rollout.rollout_id, current_loop_pool()
        agent_task = AgentTask(work, job.attempt_id, self.counts, retryable=_will_retry(lease))
        loops.start(agent_task, alone=rollout_id in self._stopped)
        self._stopped.discard(rollout_id)
        try:
            await asyncio.wait({agent_task.done}, timeout=timeout)
            late = None if agent_task.done.done() else self._timed_out(agent_task, timeout)
        finally:
            if not await self._stop(agent_task.done, agent_task.cancel, job.attempt_id):
                loops.abandon(agent_task)
        if (line := agent_task.stopped_for) is not None:
            self.counts["stopped-for-another"] += 1
            self._stopped.add(rollout_id)
            reason = f"cancelled: another rollout blocked their event loop at {line}; to fix it, {REMEDY}"
            return Outcome(AttemptStatus.FAILED, reason)
        return late or _outcome_of(agent_task.done)

    def _timed_out(self, agent_task: AgentTask, timeout: float | None) -> Outcome:
        """Return the outcome when the time is up: the agent took too long, or its loop is blocked. Stop the
        agent without waiting if another attempt blocks the loop.
        """
        blocked = current_loop_pool().blocked(agent_task)
        if blocked is None:
            return timed_out(timeout)
        line, own = blocked
        if not own:
            agent_task.stop_for(line)
        return timed_out(timeout, f"it blocks its event loop at {line}")


def _will_retry(lease: AttemptedRollout) -> bool:
    """Return whether another attempt follows if this one is stopped."""
    config = lease.rollout.config
    again = "cancelled" in config.retry_on or AttemptStatus.FAILED in config.retry_condition
    return again and lease.attempt.sequence_id < config.max_attempts


def _outcome_of(work: asyncio.Future[Outcome]) -> Outcome:
    return outcome_of_error(asyncio.CancelledError()) if work.cancelled() else work.result()
