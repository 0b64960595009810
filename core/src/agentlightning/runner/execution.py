"""Chooses where an agent runs, and keeps its time: in a worker process (hook ``agl_worker_pools``), on an
event loop for agents, or on the runner's own loop.

Invariant: an attempt ends when its time is up, even if its agent ignores being cancelled. Such an agent is
abandoned and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentlightning.capture.context import AttemptContext
from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.suite import not_installed
from agentlightning.runner.agent import HostedAgent, execute
from agentlightning.runner.agent_loops import REMEDY, AgentTask, current_loop_pool
from agentlightning.runner.outcome import Outcome, outcome_of_error, timed_out
from agentlightning.runner.settings import RunnerSection
from agentlightning.types import AttemptedRollout, AttemptStatus, Rollout, UsageError

log = logging.getLogger(__name__)
CANCEL_SECONDS = 1.0
"""Seconds that a cancelled agent has to end."""
RunInWorker = Callable[[Rollout, AttemptContext], Coroutine[Any, Any, Outcome]]
"""Runs one attempt in a process. Cancellation kills the process and all that it started."""


class WorkerPool(Protocol):
    """Processes in which an agent runs, one attempt at a time in each."""

    async def start(self) -> None:
        """Be ready before a lease. Raise :class:`.CannotRun` if the agent cannot run in another process."""

    def worker(self) -> AbstractAsyncContextManager[RunInWorker]:
        """Wait for a free process, and have it within the block."""

    async def close(self) -> None:
        """End all processes."""


def worker_pool(
    agent: HostedAgent, settings: RunnerSection, counts: Counter[str], plugins: Plugins
) -> WorkerPool | None:
    """Return the processes in which the agent runs; ``None``: it runs in this one. Raise UsageError where no
    plugin has any, and :class:`.CannotRun` for an agent that cannot be sent to another process.
    """
    if settings.isolation != "process":
        return None
    given = {"agent": agent, "settings": settings, "counts": counts}
    pool: WorkerPool | None = plugins.first("agl_worker_pools", **given)
    if pool is None:
        raise UsageError(f"isolation='process': {not_installed('isolation', 'process')}")
    return pool


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

    async def run(self, lease: AttemptedRollout, context: AttemptContext, timeout: float | None) -> Outcome:
        """Run one attempt for at most ``timeout`` seconds. Cancellation stops the agent."""
        if self.pool is not None:
            async with self.pool.worker() as run:  # the time begins when a worker is free
                return await self._run_task(run(lease.rollout, context), context, timeout)
        if self.own_loop:
            return await self._run_on_agent_loop(lease, context, timeout)
        return await self._run_task(
            execute(self.agent, lease.rollout, context, self.counts), context, timeout
        )

    async def _run_task(
        self, work: Coroutine[Any, Any, Outcome], context: AttemptContext, timeout: float | None
    ) -> Outcome:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=timeout)
            return _outcome_of(task) if task.done() else timed_out(timeout)
        finally:
            if not await self._stop(task, task.cancel, context):
                asyncio._unregister_task(task)  # so that the end of the loop does not wait for it

    async def _stop(
        self, work: asyncio.Future[Any], cancel: Callable[[], object], context: AttemptContext
    ) -> bool:
        """Cancel the agent if it runs, and return whether it has ended. An agent that has not is counted."""
        if work.done():
            return True
        cancel()
        await asyncio.wait({work}, timeout=CANCEL_SECONDS)
        if not work.done():
            self.counts["abandoned"] += 1
            log.warning("attempt %s ended, but its agent ignores being cancelled", context.attempt_id)
        return work.done()

    async def _run_on_agent_loop(
        self, lease: AttemptedRollout, context: AttemptContext, timeout: float | None
    ) -> Outcome:
        async def work() -> Outcome:
            try:
                return await execute(self.agent, lease.rollout, context, self.counts)
            except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:  # it would end the loop
                return outcome_of_error(error)

        rollout_id, loops = lease.rollout.rollout_id, current_loop_pool()
        config, attempt = lease.rollout.config, lease.attempt
        again = "cancelled" in config.retry_on or AttemptStatus.FAILED in config.retry_condition
        retryable = again and attempt.sequence_id < config.max_attempts
        agent_task = AgentTask(work, attempt.attempt_id, self.counts, retryable=retryable)
        loops.start(agent_task, alone=rollout_id in self._stopped)
        self._stopped.discard(rollout_id)
        late: Outcome | None = None
        try:
            await asyncio.wait({agent_task.done}, timeout=timeout)
            if not agent_task.done.done():
                late = timed_out(timeout)
                if (blocked := loops.blocked(agent_task)) is not None:
                    line, own = blocked
                    late = timed_out(timeout, f"it blocks its event loop at {line}")
                    if not own:  # another attempt blocks it: this one is not waited for
                        agent_task.stop_for(line)
        finally:
            if not await self._stop(agent_task.done, agent_task.cancel, context):
                loops.abandon(agent_task)
        if (stopped_for := agent_task.stopped_for) is not None:
            self.counts["stopped-for-another"] += 1
            self._stopped.add(rollout_id)
            where = f"another rollout blocked their event loop at {stopped_for}"
            return Outcome(AttemptStatus.FAILED, f"cancelled: {where}; to fix it, {REMEDY}")
        return late or _outcome_of(agent_task.task or agent_task.done)


def _outcome_of(work: asyncio.Future[Any]) -> Outcome:
    return outcome_of_error(asyncio.CancelledError()) if work.cancelled() else work.result()
