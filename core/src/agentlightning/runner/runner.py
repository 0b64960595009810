"""The runner: leases rollouts from a store and runs the user's agent on them.

The walk of a lease, file by file: :mod:`.runner` leases it, :mod:`.attempt` opens and closes its attempt,
:mod:`.execution` chooses where the agent runs and keeps its time, :mod:`.execute` calls it,
:mod:`.outcomes.outcome` reads what it returned or raised, :mod:`.outcomes.ending` writes the end.

``isolation="inline"``: async agents are tasks of an event loop of their own, sync agents have a thread each.
``"process"``: each attempt runs in a warm worker process, which is killed when its time is up.
``concurrency`` bounds both.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, get_args

from agentlightning.decorator.agents import LitAgent, as_agent
from agentlightning.plugins.manager import Plugins
from agentlightning.runner.attempt import AttemptRunner
from agentlightning.runner.attempt_keys import AttemptKeys
from agentlightning.runner.event_loops.forks import exit_forks_of_loop
from agentlightning.runner.event_loops.threads import use_daemon_executor
from agentlightning.runner.execution import Execution
from agentlightning.runner.processes.pool import WorkerPool
from agentlightning.store.base import Store
from agentlightning.types import (
    AttemptedRollout,
    Rollout,
    RolloutConfig,
    UsageError,
    new_id,
)
from agentlightning.webserver import log_limit

log = logging.getLogger(__name__)
POLL = 0.25
"""Seconds that a request for rollouts waits. The store answers as soon as there is one; the limit lets a stop
be noticed, since a request is never abandoned: rollouts that it leased would be lost.
"""
Isolation = Literal["inline", "process"]


class StopEvent(Protocol):
    """An event of asyncio or threading."""

    def is_set(self) -> bool: ...


class Runner:
    """Runs ``agent`` on rollouts of ``store``.

    ``attempt_keys``: the gateway, or :class:`RemoteAttemptKeys` for one in another process; without it the
    agent calls its endpoints directly and only the wire layer records. ``timeout_seconds``: for rollouts
    whose own configuration has no limit. ``heartbeat``: seconds between heartbeats, at most. ``drain``:
    seconds that running attempts have to end once serving stops (``None``: as long as they take); then they
    are stopped. ``adapters``: those that worker processes activate by name. ``own_loop``: agents run on an
    event loop of their own; false only for code of ours that shares objects with this one.
    """

    def __init__(
        self,
        agent: Any,
        store: Store,
        *,
        attempt_keys: AttemptKeys | None = None,
        plugins: Plugins | None = None,
        worker_id: str | None = None,
        run_id: str | None = None,
        concurrency: int = 16,
        timeout_seconds: float | None = None,
        policies: dict[str, str] | None = None,
        heartbeat: float = 5.0,
        drain: float | None = None,
        isolation: Isolation = "inline",
        adapters: Sequence[str] = (),
        own_loop: bool = True,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency}: at least one rollout must run at a time")
        if isolation not in get_args(Isolation):
            raise UsageError(f"isolation is {isolation!r}; use {' or '.join(get_args(Isolation))}")
        self.agent: LitAgent[Any] = as_agent(agent)
        self.store = store
        self.worker_id = worker_id or new_id("worker")
        self.run_id = run_id
        self.concurrency = concurrency
        self.drain = drain
        self.counts: Counter[str] = Counter()
        """Attempt status → attempts that ended so here; ``fenced``: ends that the store refused;
        ``abandoned``: agents that went on after their attempt had ended; ``loop-blocked``: lines at which an
        agent blocks its event loop, ``stopped-for-another``: attempts that were stopped because another
        blocked theirs; ``killed`` and ``died``: worker processes; ``lease-lost``, ``supplied-refused``,
        ``heartbeat-failed``, ``end-hook-failed``: as they say.
        """
        self._pool: WorkerPool | None = None
        if isolation == "process":
            self._pool = WorkerPool(self.agent, size=concurrency, adapters=adapters, counts=self.counts)
        self._attempts = AttemptRunner(
            store,
            Execution(self.agent, self.counts, pool=self._pool, own_loop=own_loop),
            self.counts,
            worker_id=self.worker_id,
            heartbeat_seconds=heartbeat,
            attempt_keys=attempt_keys,
            plugins=plugins,
            policies=policies or {},
            timeout_seconds=timeout_seconds,
        )
        self._running: dict[str, asyncio.Task[None]] = {}
        self._slot_freed = asyncio.Event()
        self._fatal: BaseException | None = None
        """The error that ends serving: no attempt can be run, or no end be written (a store that is away,
        say).
        """

    @property
    def running(self) -> int:
        """Number of attempts that run."""
        return len(self._running)

    # ------------------------------------------------------------------------------------------ serving
    async def serve(self, stop: StopEvent | None = None, *, limit: int | None = None) -> None:
        """Run rollouts until ``stop`` is set, ``limit`` of them were begun, or the task is cancelled.
        Attempts that run then have ``drain`` seconds.

        Raises the error that keeps ends of attempts from being written: a runner that cannot write must not
        look alive.
        """
        self._attempts.stopping, self._slot_freed = False, asyncio.Event()
        exit_forks_of_loop()
        use_daemon_executor()
        log_limit.limit()
        if self._pool is not None:
            await self._pool.start()
        beat = asyncio.create_task(self._attempts.heartbeat.run())
        left = limit
        try:
            while not (stop and stop.is_set()) and self._fatal is None and left != 0:
                free = self.concurrency - len(self._running)
                if not free:
                    await self._free_slot()
                    continue
                leases = await self._lease(min(free, left or free))
                left = None if left is None else left - leases
        finally:
            try:
                await self._drain()
            finally:
                beat.cancel()
                await self.close()
        if self._fatal is not None:
            raise self._fatal

    async def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._pool is not None:
            await self._pool.close()

    def stop_all(self) -> None:
        """Stop all attempts at once; they end as cancelled."""
        self._attempts.stop_all()

    async def _free_slot(self) -> None:
        """Wait until an attempt has ended, or until it is time to look for a stop."""
        self._slot_freed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._slot_freed.wait(), POLL)

    async def _lease(self, limit: int) -> int:
        """Lease rollouts and begin them; also when cancelled meanwhile, so that no lease is lost."""
        request = asyncio.create_task(
            self.store.dequeue_many_rollouts(self.worker_id, limit, run_id=self.run_id, wait=POLL)
        )
        try:
            leases = await asyncio.shield(request)
        except asyncio.CancelledError:
            for lease in await request:
                self._begin(lease)
            raise
        for lease in leases:
            self._begin(lease)
        return len(leases)

    def _begin(self, lease: AttemptedRollout) -> None:
        """Run a lease in the background, and free its slot when it has ended."""
        attempt_id = lease.attempt.attempt_id
        task = asyncio.create_task(self._attempts.run(lease))
        self._running[attempt_id] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._running.pop(attempt_id, None)
            self._slot_freed.set()
            if not done.cancelled() and done.exception() is not None:
                self._fatal = self._fatal or done.exception()

        task.add_done_callback(ended)

    async def _drain(self) -> None:
        """Let running attempts end; after ``drain`` seconds stop them."""
        if self._running and self.drain is not None:
            _, late = await asyncio.wait(self._running.values(), timeout=self.drain)
            if late:
                log.warning("stopping %d rollouts that are still running", len(late))
                self.stop_all()
        while self._running:
            await asyncio.wait(self._running.values())
            await asyncio.sleep(0)  # the callbacks that take them out

    async def step(self, task: Any, resources_id: str | None = None, **fields: Any) -> Rollout:
        """Run one task now, without the queue, and return its finished rollout. With worker processes,
        :meth:`close` ends them when the last step is done.
        """
        once = RolloutConfig(max_attempts=1)
        given = {"resources_id": resources_id, "worker_id": self.worker_id, "config": once, **fields}
        return await self.run_lease(await self.store.start_rollout(task, **given))

    async def run_lease(self, lease: AttemptedRollout) -> Rollout:
        """Run a lease of this worker's to its end; the rollout as it then stands."""
        beat = asyncio.create_task(self._attempts.heartbeat.run())
        try:
            await self._attempts.run(lease)
        finally:
            beat.cancel()
        return await self.store.get_rollout_by_id(lease.rollout.rollout_id)
