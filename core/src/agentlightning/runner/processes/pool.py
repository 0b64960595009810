"""Warm worker processes. Each runs one attempt at a time and is killed when the attempt's time is up.

Invariant: an idle worker can run the next attempt. A worker that was cancelled, died or sent an unreadable
message is killed with all processes that it started, and a new worker is started when it is needed.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections import Counter
from typing import Any

from agentlightning.capture.delivery import COUNTS
from agentlightning.runner.agent.hosted import HostedAgent
from agentlightning.runner.outcomes.outcome import CannotRun, Outcome
from agentlightning.runner.processes.messages import AttemptDone, AttemptJob, LoadAgent
from agentlightning.runner.processes.worker_handle import Sink, WorkerHandle
from agentlightning.runner.settings import RunnerSection
from agentlightning.types import AttemptStatus


class WorkerPool:
    """At most ``settings.concurrency`` workers for one agent. Counts of the workers, ``killed`` and ``died``
    are added to ``counts``. Raises :class:`.CannotRun` if the agent cannot be sent to another process.
    """

    def __init__(self, agent: HostedAgent, settings: RunnerSection, counts: Counter[str]) -> None:
        self._agent = LoadAgent(_pickled(agent), settings.adapters)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._counts = counts
        self._idle: list[WorkerHandle] = []
        self._busy: set[WorkerHandle] = set()

    async def start(self) -> None:
        """Start the first worker, so that an agent that cannot be imported is found before a lease."""
        self.give_back(await self.take())

    async def take(self) -> WorkerHandle:
        """Return an idle worker, the one that worked last first, or a new one."""
        await self._slots.acquire()
        try:
            while self._idle:
                worker = self._idle.pop()
                if worker.usable:
                    break
            else:
                worker = await WorkerHandle.start(self._agent)
        except BaseException:
            self._slots.release()
            raise
        self._busy.add(worker)
        return worker

    def give_back(self, worker: WorkerHandle) -> None:
        """Keep a worker for the next attempt, unless it died or is being killed."""
        self._busy.discard(worker)
        if worker.usable:
            self._idle.append(worker)
        self._slots.release()

    async def run(self, worker: WorkerHandle, job: AttemptJob, sink: Sink) -> Outcome:
        """Run one attempt on a worker that was taken. Cancellation kills the worker."""
        try:
            done = await worker.run(job, sink)
        except asyncio.CancelledError:
            self._counts["killed"] += 1
            raise
        if isinstance(done, AttemptDone):
            self._counts.update(done.counts)
            for reason, times in done.capture.items():
                COUNTS.add(reason, times)
            return done.outcome
        self._counts["died"] += 1
        await worker.close()
        return Outcome(AttemptStatus.FAILED, f"agent-raised: the worker process {done}")

    async def close(self) -> None:
        """End all workers."""
        workers, self._idle = [*self._idle, *self._busy], []
        await asyncio.gather(*(worker.close() for worker in workers))


def _pickled(agent: HostedAgent) -> bytes:
    try:
        data = pickle.dumps(agent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(agent.agent, "name", type(agent.agent).__name__)
        raise CannotRun(
            f"isolation='process' sends the agent {name!r} to another process, which must be able to import "
            f"it: {error}. Define it at the top level of a module (no lambda, no function or class inside "
            "another, no open connection or lock as an attribute), or use isolation='inline'"
        ) from None
    main: Any = sys.modules["__main__"]
    if b"__main__" in data and not (getattr(main, "__spec__", None) or getattr(main, "__file__", None)):
        raise CannotRun(
            "isolation='process': the agent was defined in __main__ without a file (a notebook, a prompt, "
            "python -c), which another process cannot import: put it into a module, or use isolation='inline'"
        )
    return data
