"""The runner: leases rollouts from a store and runs the user's agent on them.

:meth:`Runner.serve` leases, and :meth:`Runner.run` takes one lease to the written end of its attempt:
:mod:`.heartbeat` keeps the lease, :mod:`.attempt` opens the attempt with its resources and its key,
:mod:`.execution` chooses where the agent runs and keeps its time, :mod:`.agent` calls it, :mod:`.outcome`
reads what it returned or raised, :mod:`.ending` writes the end.

``isolation="inline"``: async agents are tasks of an event loop of their own, sync agents have a thread each.
``"process"``: each attempt runs in a warm worker process, which is killed when its time is up.
``concurrency`` bounds both.

Invariant: when an attempt ends, its key is revoked first; then its spans and its status are written in one
transaction. Who reads an ended attempt reads all of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from agentlightning import capture
from agentlightning.capture.emit import find_reward_spans
from agentlightning.log_limit import limit_libraries
from agentlightning.plugins.manager import Plugins, load
from agentlightning.runner.agent import hosted
from agentlightning.runner.attempt import AttemptKeys, open_attempt
from agentlightning.runner.ending import EndWriter
from agentlightning.runner.execution import Execution, run_on_loop, worker_pool
from agentlightning.runner.heartbeat import Heartbeat
from agentlightning.runner.outcome import CannotRun, Outcome, cancelled, outcome_of_error
from agentlightning.runner.settings import RunnerSection
from agentlightning.runner.threads import prepare_agent_loop
from agentlightning.store.base import Store
from agentlightning.types import AttemptedRollout, Rollout, RolloutConfig, Span, UsageError, new_id
from agentlightning.types.record import reward_of

log = logging.getLogger(__name__)
POLL = 0.25
"""Seconds that a request for rollouts waits. The store answers as soon as it has one; the limit lets the
runner notice a stop, because a request is never abandoned: rollouts that it leased would be lost.
"""
FINISH_SECONDS = 30.0
"""Seconds that running rollouts have to finish when a run ends without an error."""
FINISH_SECONDS_AFTER_ERROR = 2.0


StopEvent = asyncio.Event | threading.Event


@dataclass(eq=False, repr=False)
class Runner:
    """Leases rollouts of ``store``, runs ``agent`` on them, and writes the ends of their attempts."""

    agent: Any
    store: Store
    settings: RunnerSection = RunnerSection(timeout_seconds=None)
    """``timeout_seconds``: the limit of a rollout whose configuration has none."""
    _: KW_ONLY
    attempt_keys: AttemptKeys | None = None
    """The gateway, or keys for a gateway in another process (agl-cluster). Without keys the agent
    calls its endpoints directly, and only the wire layer records.
    """
    plugins: Plugins = field(default_factory=load)
    worker_id: str = field(default_factory=partial(new_id, "worker"))
    heartbeat: float = 5.0
    """Seconds between two heartbeats, at most."""
    own_loop: bool = True
    """Whether agents run on an event loop of their own. Only code of Agent Lightning that shares objects with
    the runner's loop sets ``False``.
    """
    run_id: str | None = None
    """Lease only the rollouts of this run."""
    drain: float | None = None
    """Seconds that running attempts have to end when serving stops; then they are stopped. ``None``: no
    limit.
    """
    counts: Counter[str] = field(init=False, default_factory=Counter)
    """Attempt status → attempts that ended with it. Further counts: ``fenced`` (ends that the store refused),
    ``abandoned`` (agents that went on after their attempt had ended), ``lease-lost`` and
    ``heartbeat-failed``. agl-cluster counts ``loop-blocked`` (lines at which an agent blocks its event loop),
    ``stopped-for-another`` (attempts that were stopped because another attempt blocked their loop),
    ``killed`` and ``died`` (worker processes) and ``not-queued``, agl-v03 ``supplied-refused`` and
    ``end-hook-failed``.
    """

    def __post_init__(self) -> None:
        if self.settings.concurrency < 1:
            raise UsageError("concurrency is 0: at least one rollout must run at a time")
        self.agent = hosted(self.agent, self.plugins)
        self.agent.runner = self
        self._pool = worker_pool(self.agent, self.settings, self.counts, self.plugins)
        on_loop = (self.plugins.first("agl_agent_loops") or run_on_loop) if self.own_loop else None
        self._execution = Execution(self.agent, self.counts, self._pool, on_loop)
        self._heartbeat = Heartbeat(self.store, self.worker_id, self.heartbeat, self.stop, self.counts)
        self._ends = EndWriter(
            self.agent, self.store, self.counts, calls_recorded=self.attempt_keys is not None
        )
        self._agents: dict[str, asyncio.Task[Outcome]] = {}
        """Running agents, by attempt. They can be stopped; the rest of an attempt cannot."""
        self._stopping = False
        """Whether attempts that begin now are stopped at once."""
        self._running: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None
        """The error that ends serving: no attempt can be run, or no end can be written."""

    # ------------------------------------------------------------------------------------------ one attempt
    async def run(self, lease: AttemptedRollout) -> None:
        """Run an attempt and write its end. Raise the error that prevents this runner from running any
        attempt, or from writing the end.
        """
        rollout, attempt_id = lease.rollout, lease.attempt.attempt_id
        spans: list[Span] = []
        fatal: CannotRun | None = None
        self.plugins.ask("agl_rollout_started", rollout=rollout, attempt=lease.attempt)
        self._heartbeat.add(attempt_id, rollout.config.unresponsive_seconds)
        agent = self._agents[attempt_id] = asyncio.create_task(self._run_agent(lease, spans))
        if self._stopping:
            agent.cancel()
        try:
            outcome = await agent
        except asyncio.CancelledError:
            outcome = cancelled()
        except CannotRun as error:
            outcome, fatal = cancelled(str(error)), error
        finally:
            self._heartbeat.discard(attempt_id)
            del self._agents[attempt_id]
        capture.end_attempt(attempt_id)
        if self.attempt_keys:
            await self.attempt_keys.close_attempt(attempt_id)
        attempt = await self._ends.write(lease, outcome, spans)
        notify_rewards(self.plugins, [*spans, *outcome.returned])
        if self.plugins.has_listeners("agl_rollout_finished"):
            rollout = await self.store.get_rollout_by_id(rollout.rollout_id)
            self.plugins.ask("agl_rollout_finished", rollout=rollout, attempt=attempt)
        if fatal is not None:
            raise fatal

    async def _run_agent(self, lease: AttemptedRollout, spans: list[Span]) -> Outcome:
        """Open the attempt at the gateway, and run the agent."""
        try:
            context = await open_attempt(
                lease, self.store, self.attempt_keys, self.settings.policies, spans.append
            )
        except CannotRun:
            raise
        except Exception as error:
            return outcome_of_error(error)
        timeout = lease.rollout.config.timeout_seconds or self.settings.timeout_seconds
        return await self._execution.run(lease, context, timeout)

    async def run_lease(self, lease: AttemptedRollout) -> Rollout:
        """Run an attempt with heartbeats of its own, and return its rollout as it then stands."""
        self._heartbeat.start()
        try:
            await self.run(lease)
        finally:
            await self._heartbeat.stop()
        return await self.store.get_rollout_by_id(lease.rollout.rollout_id)

    async def step(self, task: Any, resources_id: str | None = None, **fields: Any) -> Rollout:
        """Run one task without the queue and return its finished rollout. With worker processes, call
        :meth:`close` after the last step.
        """
        once = RolloutConfig(max_attempts=1, trusted=self.agent.agent.trusted)
        given = {"resources_id": resources_id, "worker_id": self.worker_id, "config": once, **fields}
        return await self.run_lease(await self.store.start_rollout(task, **given))

    def stop(self, attempt_id: str) -> None:
        """Stop the agent of an attempt, if it runs."""
        if attempt_id in self._agents:
            self._agents[attempt_id].cancel()

    def stop_all(self) -> None:
        """Stop all agents, and those that begin from now on. Their attempts end as cancelled."""
        self._stopping = True
        for agent in self._agents.values():
            agent.cancel()

    # ---------------------------------------------------------------------------------------------- serving
    @property
    def store_is_silent(self) -> bool:
        """Whether the store did not answer the last heartbeat."""
        return self._heartbeat.silent

    @property
    def running(self) -> int:
        """Number of attempts that run."""
        return len(self._running)

    async def serve(self, stop: StopEvent | None = None, *, limit: int | None = None) -> None:
        """Run rollouts until ``stop`` is set, ``limit`` of them were begun, or the task is cancelled; then
        let running attempts end for ``drain`` seconds.

        Raise the error that prevents ends of attempts from being written: a runner that cannot write must
        not look alive.
        """
        left = limit
        async with self.serving():
            while not self.should_stop(stop) and left != 0:
                free = self.settings.concurrency - len(self._running)
                if not free:
                    await self.wait_for_slot()
                    continue
                leased = await self._lease(min(free, left or free))
                left = None if left is None else left - leased

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Be ready to run rollouts; at the end let those that run end, and raise the error that prevents
        any.
        """
        self._stopping = False
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

    def should_stop(self, stop: StopEvent | None) -> bool:
        """Return whether serving ends: ``stop`` is set, or no end can be written."""
        return (stop is not None and stop.is_set()) or self._fatal is not None

    def end_soon(self, in_error: bool) -> None:
        """Bound the seconds that running rollouts have to finish, as a trainer does when its run ends."""
        self.drain = FINISH_SECONDS_AFTER_ERROR if in_error else FINISH_SECONDS

    async def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._pool is not None:
            await self._pool.close()

    async def wait_for_slot(self) -> None:
        """Wait until an attempt has ended, or until it is time to look for a stop."""
        await asyncio.wait(self._running, timeout=POLL, return_when=asyncio.FIRST_COMPLETED)

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
                self.begin(lease)
        return len(leases)

    def begin(self, lease: AttemptedRollout) -> None:
        """Run a lease in the background."""
        task = asyncio.create_task(self.run(lease))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Free the slot of a lease that has ended."""
        self._running.discard(task)
        # Every error is looked at, for asyncio logs those that nobody has looked at.
        self._fatal = (None if task.cancelled() else task.exception()) or self._fatal

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


def notify_rewards(plugins: Plugins, spans: Iterable[Span]) -> None:
    """Notify plugins of the rewards among the spans of an attempt."""
    if not plugins.has_listeners("agl_reward_emitted"):
        return
    for span in find_reward_spans(spans):
        ids = {"rollout_id": span.rollout_id, "attempt_id": span.attempt_id}
        plugins.ask("agl_reward_emitted", reward=reward_of(span), **ids)
