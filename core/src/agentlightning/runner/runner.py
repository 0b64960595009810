"""The runner: leases rollouts, runs the user's agent under an attempt's identity, and settles what became of
it.

``isolation="inline"``: async agents are tasks of an event loop of their own, sync agents have
a thread each. ``"process"``: each attempt runs in a warm worker process, which is killed when its time is up.
``concurrency`` bounds both.
An attempt has a wall-clock limit, whatever its agent makes of being cancelled. When it ends, its key is
revoked first, then spans and status are written in one transaction: whoever reads a finished attempt reads
all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, get_args

from agentlightning import capture
from agentlightning.capture.emit.rewards import find_reward_spans, reward_of
from agentlightning.capture.emit.validation import BadRecord, admit_all
from agentlightning.decorator.agents import LitAgent, as_agent
from agentlightning.gateway import AttemptInfo
from agentlightning.gateway.admission.seeds import root_seed
from agentlightning.plugins.manager import Plugins
from agentlightning.runner.attempt_keys import AttemptKeys as AttemptKeys, CannotRun, with_attempt_key
from agentlightning.runner.event_loops.forks import exit_forks_of_loop
from agentlightning.runner.event_loops.threads import use_daemon_executor
from agentlightning.runner.execute import AttemptResult
from agentlightning.runner.execution import Execution
from agentlightning.runner.heartbeat import Heartbeat
from agentlightning.runner.outcomes.outcome import Outcome, cancelled, classify, outcome_of_error
from agentlightning.runner.outcomes.storable import UNSTORABLE, as_bad_record, store_as_failed
from agentlightning.runner.outcomes.transitions import match_transitions
from agentlightning.runner.processes.messages import AttemptJob
from agentlightning.runner.processes.pool import WorkerPool
from agentlightning.runner.resources import attempt_resources
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    Span,
    UsageError,
    new_id,
)
from agentlightning.types.failure import TRACEBACK
from agentlightning.webserver import log_limit

log = logging.getLogger(__name__)
POLL = 0.25
"""Seconds a request for work waits. Work that arrives is handed over at once; the bound is for stopping,
because a request is never abandoned: what it leased would be lost.
"""
Isolation = Literal["inline", "process"]


class StopEvent(Protocol):
    """An event of asyncio or threading."""

    def is_set(self) -> bool: ...


class Runner:
    """Runs ``agent`` on rollouts of ``store``.

    ``attempt_keys``: the gateway, or a :class:`RemoteAttemptKeys` to one elsewhere; without one the agent
    calls its endpoints directly and only the wire layer records. ``timeout``: seconds for rollouts whose own
    configuration names none. ``heartbeat``: at most so many seconds between signs of life. ``drain``: seconds
    that running attempts have to end once serving stops (``None``: as long as they take); then they are
    stopped and settled so. ``adapters``: those that worker processes activate by name. ``own_loop``: agents
    run on an event loop of their own; false only for code of ours that shares objects with this one.
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
        timeout: float | None = None,
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
        self.attempt_keys = attempt_keys
        self.plugins = plugins
        self.worker_id = worker_id or new_id("worker")
        self.run_id = run_id
        self.concurrency = concurrency
        self.timeout = timeout
        self.policies = policies or {}
        self.drain = drain
        self.counts: Counter[str] = Counter()
        """Attempt status → attempts this runner has settled; ``fenced``: ends that were refused;
        ``abandoned``: agents that went on after their attempt had ended; ``loop-blocked``: places where an
        agent blocks its event loop, ``stopped-for-another``: attempts that were stopped because another
        blocked theirs; ``killed`` and ``died``: worker processes; ``lease-lost``, ``supplied-refused``,
        ``heartbeat-failed``, ``end-hook-failed``: as they say.
        """
        self._heartbeat = Heartbeat(store, self.worker_id, heartbeat, self._stop_attempt, self.counts)
        self._pool: WorkerPool | None = None
        if isolation == "process":
            self._pool = WorkerPool(self.agent, size=concurrency, adapters=adapters, counts=self.counts)
        self._execution = Execution(self.agent, self.counts, pool=self._pool, own_loop=own_loop)
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._agents: dict[str, asyncio.Task[AttemptResult]] = {}
        """Agents at work, by attempt: what can be stopped. That an attempt is settled, nothing stops."""
        self._slot_freed = asyncio.Event()
        self._stopped = False
        self._fatal: BaseException | None = None
        """Why no attempt can be run or settled here (the store is gone, say): then serving ends with it."""

    @property
    def running(self) -> int:
        """Attempts under way."""
        return len(self._attempts)

    # ------------------------------------------------------------------------------------------ serving
    async def serve(self, stop: StopEvent | None = None, *, limit: int | None = None) -> None:
        """Run rollouts until ``stop`` is set, ``limit`` of them were begun, or the task is cancelled; what
        runs then has ``drain`` seconds.

        Raises what keeps attempts from being settled: a runner that cannot write must not look alive.
        """
        self._stopped, self._slot_freed = False, asyncio.Event()
        exit_forks_of_loop()
        use_daemon_executor()
        log_limit.limit()
        if self._pool is not None:
            await self._pool.start()
        beat = asyncio.create_task(self._heartbeat.run())
        left = limit
        try:
            while not (stop and stop.is_set()) and self._fatal is None and left != 0:
                free = self.concurrency - len(self._attempts)
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
        """Stop what runs, at once; each attempt is settled as cancelled."""
        self._stopped = True
        for agent in self._agents.values():
            agent.cancel()

    async def _free_slot(self) -> None:
        """Wait until an attempt has ended, but not so long that a stop would go unnoticed."""
        self._slot_freed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._slot_freed.wait(), POLL)

    async def _lease(self, limit: int) -> int:
        """Ask for work and begin it; also when cancelled meanwhile, so that nothing leased is lost."""
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
        """Run a lease in the background; its place is free again when it has ended."""
        attempt_id = lease.attempt.attempt_id
        task = asyncio.create_task(self._attempt(lease))
        self._attempts[attempt_id] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._attempts.pop(attempt_id, None)
            self._slot_freed.set()
            if not done.cancelled() and done.exception() is not None:
                self._fatal = self._fatal or done.exception()

        task.add_done_callback(ended)

    async def _drain(self) -> None:
        """Let running attempts end; after ``drain`` seconds stop them."""
        if self._attempts and self.drain is not None:
            _, late = await asyncio.wait(self._attempts.values(), timeout=self.drain)
            if late:
                log.warning("stopping %d rollouts that are still running", len(late))
                self.stop_all()
        while self._attempts:
            await asyncio.wait(self._attempts.values())
            await asyncio.sleep(0)  # the callbacks that take them out

    def _stop_attempt(self, attempt_id: str) -> None:
        """Stop the agent of an attempt whose lease has gone."""
        if attempt_id in self._agents:
            self._agents[attempt_id].cancel()

    async def step(self, task: Any, resources_id: str | None = None, **fields: Any) -> Rollout:
        """Run one task now, without the queue, and return its finished rollout. With worker processes,
        :meth:`close` ends them when the last step is done.
        """
        once = RolloutConfig(max_attempts=1)
        given = {"resources_id": resources_id, "worker_id": self.worker_id, "config": once, **fields}
        return await self.perform(await self.store.start_rollout(task, **given))

    async def perform(self, lease: AttemptedRollout) -> Rollout:
        """Run a lease of this worker's to its end; the rollout as it then stands."""
        beat = asyncio.create_task(self._heartbeat.run())
        try:
            await self._attempt(lease)
        finally:
            beat.cancel()
        return await self.store.get_rollout_by_id(lease.rollout.rollout_id)

    # ----------------------------------------------------------------------------------------- one attempt
    async def _attempt(self, lease: AttemptedRollout) -> None:
        attempt_id = lease.attempt.attempt_id
        spans: list[Span] = []
        impossible: CannotRun | None = None
        if self.plugins:
            self.plugins.notify("agl_rollout_started", rollout=lease.rollout, attempt=lease.attempt)
        self._heartbeat.add(attempt_id, lease.rollout.config.unresponsive_seconds)
        work = self._agents[attempt_id] = asyncio.create_task(self._run(lease, spans))
        if self._stopped:
            work.cancel()
        try:
            ended = await work
        except asyncio.CancelledError:
            ended = AttemptResult(cancelled())
        except CannotRun as error:
            impossible, ended = error, AttemptResult(Outcome(AttemptStatus.FAILED, f"cancelled: {error}"))
        finally:
            self._heartbeat.discard(attempt_id)
            del self._agents[attempt_id]
        capture.end_attempt(attempt_id)
        if self.attempt_keys:
            await self.attempt_keys.close_attempt(attempt_id)
        attempt = await self._write_end(lease, ended, spans)
        await self._notify_plugins(lease.rollout, attempt, [*spans, *ended.returned])
        if impossible is not None:
            raise impossible

    async def _write_end(self, lease: AttemptedRollout, ended: AttemptResult, spans: list[Span]) -> Attempt:
        """Write the end of an attempt. What cannot be stored fails its attempt, not the runner."""
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        for handed in (spans, ended.returned):
            handed[:] = admit_all(handed, *ids)
        try:
            outcome, metadata = await self._outcome_to_write(lease, ended, spans)
            told: dict[str, Any] = {"reason": outcome.reason, "metadata": metadata}
            try:
                attempt = await self.store.update_attempt(
                    *ids, outcome.status, spans=spans, returned=ended.returned, **told
                )
            except UNSTORABLE as error:
                attempt = await store_as_failed(self.store, *ids, spans, error)
        except AttemptEnded as error:
            self.counts["fenced"] += 1
            log.warning("attempt %s: its end was refused: %s", ids[1], error)
            return lease.attempt
        self.counts[attempt.status] += 1
        return attempt

    async def _outcome_to_write(
        self, lease: AttemptedRollout, ended: AttemptResult, spans: list[Span]
    ) -> tuple[Outcome, dict[str, Any] | None]:
        """What the attempt's record says: the agent's own transitions matched, and the kind of a failure."""
        metadata = None
        if ended.triplets and ended.outcome.status is AttemptStatus.SUCCEEDED:
            try:
                resources = await attempt_resources(self.store, lease.rollout)
                matched = await match_transitions(
                    self.store, lease, ended.triplets, policies=self.policies, resources=resources
                )
            except UNSTORABLE as error:
                return await self._refuse(lease, as_bad_record(error)), None
            metadata = matched.metadata
            ended.returned += matched.rewards
        spans += ended.outcome.spans
        if ended.outcome.traceback is not None:
            metadata = {**(metadata or {}), TRACEBACK: ended.outcome.traceback}
        return await classify(
            self.store, lease, ended.outcome, recorded=self.attempt_keys is not None
        ), metadata

    async def _refuse(self, lease: AttemptedRollout, bad: BadRecord) -> Outcome:
        """The agent's record contradicts what was recorded: it is refused, and counted."""
        self.counts["supplied-refused"] += 1
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        await self.store.count("refused", "supplied-conflict", rollout_id=rollout_id, attempt_id=attempt_id)
        return Outcome(AttemptStatus.FAILED, bad.reason)

    async def _notify_plugins(self, rollout: Rollout, attempt: Attempt, spans: list[Span]) -> None:
        """Moments of an attempt's end."""
        if not self.plugins:
            return
        if self.plugins.has_listeners("agl_reward_emitted"):
            ids = {"rollout_id": rollout.rollout_id, "attempt_id": attempt.attempt_id}
            for reward in filter(None, map(reward_of, find_reward_spans(spans))):
                self.plugins.notify("agl_reward_emitted", reward=reward, **ids)
        if self.plugins.has_listeners("agl_rollout_finished"):
            rollout = await self.store.get_rollout_by_id(rollout.rollout_id)
            self.plugins.notify("agl_rollout_finished", rollout=rollout, attempt=attempt)

    async def _run(self, lease: AttemptedRollout, spans: list[Span]) -> AttemptResult:
        """Run the agent within its limit. One that will not be cancelled is left behind, counted."""
        try:
            job = await self._job(lease)
        except CannotRun:
            raise
        except Exception as error:
            return AttemptResult(outcome_of_error(error))
        timeout = lease.rollout.config.timeout_seconds or self.timeout
        return await self._execution.run(lease, job, timeout, spans)

    async def _job(self, lease: AttemptedRollout) -> AttemptJob:
        """What the agent is given: resources with the attempt's key in them."""
        rollout, attempt = lease.rollout, lease.attempt
        info = AttemptInfo(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            run_id=rollout.run_id or "",
            fence=attempt.fence,
            mode=rollout.mode,
            seed=root_seed(rollout, attempt),
            greedy=bool(rollout.metadata.get("greedy", False)),
            policies=self.policies,
            tags=dict(rollout.metadata.get("tags") or {}),
        )
        resources, key, gateway = with_attempt_key(
            await attempt_resources(self.store, rollout), self.attempt_keys, info
        )
        return AttemptJob(
            rollout=rollout,
            attempt_id=attempt.attempt_id,
            key=key,
            gateway=gateway,
            policies=self.policies,
            resources=resources,
        )
