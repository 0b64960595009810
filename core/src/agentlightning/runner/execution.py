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
from dataclasses import dataclass
from typing import Any, Protocol

from agentlightning.capture.context import AttemptContext
from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.suite import not_installed
from agentlightning.runner.agent import HostedAgent, execute
from agentlightning.runner.agent_loops import AgentTask, shared_loop
from agentlightning.runner.outcome import Outcome, outcome_of_error, timed_out
from agentlightning.runner.settings import RunnerSection
from agentlightning.types import AttemptedRollout, Rollout, UsageError

log = logging.getLogger(__name__)
CANCEL_SECONDS = 1.0
"""Seconds that a cancelled agent has to end."""
RunInWorker = Callable[[Rollout, AttemptContext], Coroutine[Any, Any, Outcome]]
"""Runs one attempt in a process. Cancellation kills the process and all that it started."""
Work = Callable[[], Coroutine[Any, Any, Outcome]]
RunOnLoop = Callable[[Work, AttemptedRollout, float | None, Counter[str]], Coroutine[Any, Any, Outcome]]
"""Runs one attempt, which the first argument begins, on a loop of agents for at most so many seconds (hook
``agl_agent_loops``). It counts as :func:`run_on_loop` does. Cancellation stops the agent."""


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
    """Runs ``agent``: in the worker processes of ``pool``, if there is one; else on an event loop for agents,
    by ``on_loop``; or, if that is ``None``, on the runner's own loop, which an agent may then block.
    ``counts``: :attr:`.Runner.counts`.
    """

    agent: HostedAgent
    counts: Counter[str]
    pool: WorkerPool | None = None
    on_loop: RunOnLoop | None = None

    async def run(self, lease: AttemptedRollout, context: AttemptContext, timeout: float | None) -> Outcome:
        """Run one attempt for at most ``timeout`` seconds. Cancellation stops the agent."""
        if self.pool is not None:
            async with self.pool.worker() as run:  # the time begins when a worker is free
                return await self._run_task(run(lease.rollout, context), timeout, lease)
        if self.on_loop is None:
            work = execute(self.agent, lease.rollout, context, self.counts)
            return await self._run_task(work, timeout, lease)

        async def on_loop() -> Outcome:
            try:
                return await execute(self.agent, lease.rollout, context, self.counts)
            except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:  # it would end the loop
                return outcome_of_error(error)

        return await self.on_loop(on_loop, lease, timeout, self.counts)

    async def _run_task(
        self, work: Coroutine[Any, Any, Outcome], timeout: float | None, lease: AttemptedRollout
    ) -> Outcome:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=timeout)
            return outcome_of(task) if task.done() else timed_out(timeout)
        finally:
            if not await stopped(task, task.cancel, lease, self.counts):
                asyncio._unregister_task(task)  # so that the end of the loop does not wait for it


async def run_on_loop(
    work: Work, lease: AttemptedRollout, timeout: float | None, counts: Counter[str]
) -> Outcome:
    """Run one attempt on the loop of agents. A loop on which it ignores being cancelled gets no others."""
    agent_task, loop = AgentTask(work), shared_loop()
    loop.start(agent_task)
    try:
        await asyncio.wait({agent_task.done}, timeout=timeout)
        late = None if agent_task.done.done() else timed_out(timeout)
    finally:
        if not await stopped(agent_task.done, agent_task.cancel, lease, counts):
            loop.shared = False
    return late or outcome_of(agent_task.task or agent_task.done)


async def stopped(
    work: asyncio.Future[Any], cancel: Callable[[], object], lease: AttemptedRollout, counts: Counter[str]
) -> bool:
    """Cancel the agent if it runs, and return whether it has ended. An agent that has not is counted."""
    if work.done():
        return True
    cancel()
    await asyncio.wait({work}, timeout=CANCEL_SECONDS)
    if not work.done():
        counts["abandoned"] += 1
        log.warning("attempt %s ended, but its agent ignores being cancelled", lease.attempt.attempt_id)
    return work.done()


def outcome_of(work: asyncio.Future[Any]) -> Outcome:
    """Return the outcome of an agent that has ended."""
    return outcome_of_error(asyncio.CancelledError()) if work.cancelled() else work.result()
