"""The runner: leases rollouts from a store and runs the user's agent on them.

A lease passes through these modules: :mod:`.runner` leases it, :mod:`.attempt` opens and closes its attempt,
:mod:`.execution` chooses where the agent runs and keeps its time, :mod:`.agent.execute` calls it,
:mod:`.outcomes` reads what it returned or raised, :mod:`.ending` writes the end.

``isolation="inline"``: async agents are tasks of an event loop of their own, sync agents have a thread each.
``"process"``: each attempt runs in a warm worker process, which is killed when its time is up.
``concurrency`` bounds both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from agentlightning.log_limit import limit_libraries
from agentlightning.runner.attempt import AttemptRunner
from agentlightning.runner.event_loops.threads import prepare_agent_loop
from agentlightning.store.base import Conflict
from agentlightning.types import AttemptedRollout, Rollout, RolloutConfig

log = logging.getLogger(__name__)
POLL = 0.25
"""Seconds that a request for rollouts waits. The store answers as soon as it has one; the limit lets the
runner notice a stop, because a request is never abandoned: rollouts that it leased would be lost.
"""
FINISH_SECONDS = 30.0
"""Seconds that running rollouts have to finish when :meth:`Runner.serve_within` ends without an error."""
FINISH_SECONDS_AFTER_ERROR = 2.0


class StopEvent(Protocol):
    """An event of asyncio or threading."""

    def is_set(self) -> bool: ...


@dataclass(eq=False, repr=False, kw_only=True)
class Runner(AttemptRunner):
    """Leases rollouts of ``store`` and runs ``agent`` on them. ``run_id``: only the rollouts of this run."""

    run_id: str | None = None
    drain: float | None = None
    """Seconds that running attempts have to end when serving stops; then they are stopped. ``None``: no
    limit.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._running: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()
        self._fatal: BaseException | None = None
        """The error that ends serving: no attempt can be run, or no end can be written."""

    @property
    def running(self) -> int:
        """Number of attempts that run."""
        return len(self._running)

    # ------------------------------------------------------------------------------------------ serving
    async def serve(self, stop: StopEvent | None = None, *, limit: int | None = None) -> None:
        """Run rollouts until ``stop`` is set, ``limit`` of them were begun, or the task is cancelled; then
        let running attempts end for ``drain`` seconds.

        Raise the error that prevents ends of attempts from being written: a runner that cannot write must
        not look alive.
        """
        left = limit
        async with self._serving():
            while not self._should_stop(stop) and left != 0:
                free = self.settings.concurrency - len(self._running)
                if not free:
                    await self._wait_for_slot()
                    continue
                leased = await self._lease(min(free, left or free))
                left = None if left is None else left - leased

    async def serve_rollout(self, rollout_id: str, stop: StopEvent | None = None) -> None:
        """Lease this rollout and run it, until it has ended or ``stop`` is set, as :meth:`serve`. One that is
        not in the queue is left alone: it has ended, or another worker has its lease.
        """
        async with self._serving():
            try:
                lease = await self.store.start_attempt(rollout_id, worker_id=self.worker_id, queued=True)
            except Conflict as error:
                self.counts["not-queued"] += 1
                log.warning("nothing to run: %s", error)
                return
            self._begin(lease)
            while self._running and not self._should_stop(stop):
                await self._wait_for_slot()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Be ready to run rollouts; at the end let those that run end, and raise the error that prevents
        any.
        """
        self._stopping, self._slot_freed = False, asyncio.Event()
        prepare_agent_loop()
        limit_libraries()
        if self._pool is not None:
            await self._pool.start()
        self._heartbeat.start()
        try:
            yield
        finally:
            try:
                await self._drain()
            finally:
                await self._heartbeat.stop()
                await self.close()
        if self._fatal is not None:
            raise self._fatal

    def _should_stop(self, stop: StopEvent | None) -> bool:
        return (stop is not None and stop.is_set()) or self._fatal is not None

    def serve_within(self, stack: AsyncExitStack) -> asyncio.Task[None]:
        """Serve in the background until ``stack`` closes, and return the task. Closing raises the runner's
        error if there is no other.
        """

        def ends(in_error: bool) -> None:
            self.drain = FINISH_SECONDS_AFTER_ERROR if in_error else FINISH_SECONDS

        return serve_within(stack, self.serve, ends)

    async def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._pool is not None:
            await self._pool.close()

    async def _wait_for_slot(self) -> None:
        """Wait until an attempt has ended, or until it is time to look for a stop."""
        self._slot_freed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._slot_freed.wait(), POLL)

    async def _lease(self, limit: int) -> int:
        """Lease rollouts, begin them, and return their number. A cancelled request is completed, so that no
        lease is lost.
        """
        request = asyncio.create_task(
            self.store.dequeue_many_rollouts(self.worker_id, limit, run_id=self.run_id, wait=POLL)
        )
        try:
            await asyncio.shield(request)
        finally:
            leases = await request
            for lease in leases:
                self._begin(lease)
        return len(leases)

    def _begin(self, lease: AttemptedRollout) -> None:
        """Run a lease in the background."""
        task = asyncio.create_task(self.run(lease))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Free the slot of a lease that has ended."""
        self._running.discard(task)
        self._slot_freed.set()
        error = None if task.cancelled() else task.exception()
        self._fatal = self._fatal or error

    async def _drain(self) -> None:
        """Let running attempts end; after ``drain`` seconds stop them."""
        if self._running and self.drain is not None:
            _, late = await asyncio.wait(self._running, timeout=self.drain)
            if late:
                log.warning("stopping %d rollouts that are still running", len(late))
                self.stop_all()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # the callbacks that remove them

    async def step(self, task: Any, resources_id: str | None = None, **fields: Any) -> Rollout:
        """Run one task without the queue and return its finished rollout. With worker processes, call
        :meth:`close` after the last step.
        """
        once = RolloutConfig(max_attempts=1, trusted=self.agent.agent.trusted)
        given = {"resources_id": resources_id, "worker_id": self.worker_id, "config": once, **fields}
        return await self.run_lease(await self.store.start_rollout(task, **given))


def serve_within(
    stack: AsyncExitStack,
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    ends: Callable[[bool], None] = lambda in_error: None,
) -> asyncio.Task[None]:
    """Run ``serve(stop)`` in the background until ``stack`` closes, and return the task. ``ends`` is called
    before ``stop`` is set, with whether the stack closes by an error. Closing raises the error of ``serve``
    if there is no other.
    """
    stop = asyncio.Event()
    task = asyncio.create_task(serve(stop))

    async def finish(kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        ends(kind is not None)
        stop.set()
        results = await asyncio.gather(task, return_exceptions=True)
        if kind is None and isinstance(results[0], Exception):
            raise results[0]

    stack.push_async_exit(finish)
    return task
