"""The runner: leases rollouts, runs the agent under an attempt's identity, and settles what became of it.

Async agents run as tasks of one loop, sync agents in a thread each; ``concurrency`` bounds both. An attempt
has a wall-clock limit, whatever its agent makes of being cancelled. When it ends, its key is revoked first,
then spans and status are written in one transaction: whoever reads a finished attempt reads all of it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
from opentelemetry import trace

from agentlightning import capture
from agentlightning.agents import LitAgent, as_agent
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.emitters import emit_reward
from agentlightning.capture.rewards import reward_of
from agentlightning.gateway import AttemptInfo
from agentlightning.plugins import Plugins
from agentlightning.runner.outcome import Outcome, cancelled, failed, overdue, settle
from agentlightning.runner.threads import in_thread
from agentlightning.semconv import ROLLOUT_SPAN
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Resource,
    Rollout,
    Span,
    UsageError,
    new_id,
)

log = logging.getLogger(__name__)
POLL = 0.25
"""Seconds a request for work waits. Work that arrives is handed over at once; the bound is for stopping,
because a request is never abandoned: what it leased would be lost.
"""
GRACE = 1.0
"""Seconds an agent has to unwind when it is cancelled."""


class Gate(Protocol):
    """What the runner needs of the gateway."""

    @property
    def url(self) -> str: ...
    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str) -> None: ...


class Runner:
    """Runs ``agent`` on rollouts of ``store``.

    ``gate``: the gateway; without one the agent calls its endpoints directly and only the wire layer
    records. ``timeout``: seconds for rollouts whose own configuration names none. ``drain``: seconds that
    running attempts have to end once serving stops (``None``: as long as they take); then they are stopped
    and settled so.
    """

    def __init__(
        self,
        agent: Any,
        store: Store,
        *,
        gate: Gate | None = None,
        plugins: Plugins | None = None,
        worker_id: str | None = None,
        run_id: str | None = None,
        concurrency: int = 16,
        timeout: float | None = None,
        policies: dict[str, str] | None = None,
        heartbeat: float = 5.0,
        drain: float | None = None,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency}: at least one rollout must run at a time")
        self.agent: LitAgent[Any] = as_agent(agent)
        self.store = store
        self.gate = gate
        self.plugins = plugins
        self.worker_id = worker_id or new_id("worker")
        self.run_id = run_id
        self.concurrency = concurrency
        self.timeout = timeout
        self.policies = policies or {}
        self.heartbeat = heartbeat
        self.drain = drain
        self.ended: Counter[str] = Counter()
        """Attempt status → attempts this runner has settled; ``fenced``: ends that were refused;
        ``abandoned``: agents that went on after their attempt had ended; ``heartbeat-failed``,
        ``end-hook-failed``: as they say.
        """
        self._running: dict[str, asyncio.Task[None]] = {}
        self._working: set[str] = set()
        """Attempts whose agent is at work: the ones to keep alive by heartbeats."""
        self._broken: BaseException | None = None
        """Why an attempt could not be settled (the store is gone, say): then serving ends with it."""

    # ------------------------------------------------------------------------------------------ serving
    async def serve(self, stop: asyncio.Event | None = None) -> None:
        """Run rollouts until ``stop`` is set or the task is cancelled; what runs then has ``drain`` seconds.

        Raises what keeps attempts from being settled: a runner that cannot write must not look alive.
        """
        beat = asyncio.create_task(self._beat())
        slots = asyncio.Semaphore(self.concurrency)
        try:
            while not (stop and stop.is_set()) and self._broken is None:
                free = await _take_all(slots, self.concurrency)
                leases = await self._lease(free, slots)
                for _ in range(free - leases):
                    slots.release()
        finally:
            beat.cancel()
            await self._drain()
        if self._broken is not None:
            raise self._broken

    async def _lease(self, limit: int, slots: asyncio.Semaphore) -> int:
        """Ask for work and begin it; also when cancelled meanwhile, so that nothing leased is lost."""
        request = asyncio.create_task(
            self.store.dequeue_many_rollouts(self.worker_id, limit, run_id=self.run_id, wait=POLL)
        )
        try:
            leases = await asyncio.shield(request)
        except asyncio.CancelledError:
            for lease in await request:
                self._begin(lease, slots)
            raise
        for lease in leases:
            self._begin(lease, slots)
        return len(leases)

    def _begin(self, lease: AttemptedRollout, slots: asyncio.Semaphore) -> None:
        """Run a lease in the background; its slot is free again when it has ended."""
        attempt_id = lease.attempt.attempt_id
        task = asyncio.create_task(self._attempt(lease))
        self._running[attempt_id] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._running.pop(attempt_id, None)
            slots.release()
            if not done.cancelled() and done.exception() is not None:
                self._broken = self._broken or done.exception()

        task.add_done_callback(ended)

    async def _drain(self) -> None:
        """Let running attempts end; after ``drain`` seconds stop them."""
        if self._running and self.drain is not None:
            _, late = await asyncio.wait(self._running.values(), timeout=self.drain)
            if late:
                log.warning("stopping %d rollouts that are still running", len(late))
            for task in late:
                task.cancel()
        while self._running:
            await asyncio.wait(self._running.values())
            await asyncio.sleep(0)  # the callbacks that take them out

    async def _beat(self) -> None:
        """Tell the store we live; stop attempts whose lease went to another."""
        while True:
            await asyncio.sleep(self.heartbeat)
            try:
                lost = await self.store.heartbeat(self.worker_id, sorted(self._working))
            except Exception:
                self.ended["heartbeat-failed"] += 1
                log.exception("runner %s: heartbeat failed; again in %g s", self.worker_id, self.heartbeat)
                continue
            for attempt_id in set(lost) & self._working:
                log.warning("attempt %s was given to another worker; stopping it here", attempt_id)
                self._running[attempt_id].cancel()

    async def step(self, task: Any, resources_id: str | None = None, **fields: Any) -> Rollout:
        """Run one task now, without the queue, and return its finished rollout."""
        lease = await self.store.start_rollout(
            task, resources_id=resources_id, worker_id=self.worker_id, **fields
        )
        await self._attempt(lease)
        return await self.store.get_rollout_by_id(lease.rollout.rollout_id)

    # ----------------------------------------------------------------------------------------- one attempt
    async def _attempt(self, lease: AttemptedRollout) -> None:
        attempt_id = lease.attempt.attempt_id
        spans: list[Span] = []
        if self.plugins:
            self.plugins.moment("agl_rollout_started", rollout=lease.rollout, attempt=lease.attempt)
        self._working.add(attempt_id)
        try:
            outcome = await self._run(lease, spans)
        except asyncio.CancelledError:
            outcome = cancelled()
        finally:
            self._working.discard(attempt_id)
        capture.end_attempt(attempt_id)
        if self.gate:
            await self.gate.close_attempt(attempt_id)
        attempt = await self._settle(lease, outcome, [*spans, *outcome.spans])
        await self._tell(lease.rollout, attempt, spans)

    async def _settle(self, lease: AttemptedRollout, outcome: Outcome, spans: list[Span]) -> Attempt:
        """Write the end of an attempt. Spans that cannot be stored fail their attempt, not the runner."""
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        try:
            attempt = await self.store.update_attempt(
                *ids, outcome.status, reason=outcome.reason, spans=spans
            )
        except AttemptEnded as error:
            self.ended["fenced"] += 1
            log.warning("attempt %s: its end was refused: %s", ids[1], error)
            return lease.attempt
        except (TypeError, ValueError) as error:
            reason = f"bad-spans: the attempt's spans could not be stored: {error}"
            attempt = await self.store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason)
        self.ended[attempt.status] += 1
        return attempt

    async def _tell(self, rollout: Rollout, attempt: Attempt, spans: list[Span]) -> None:
        """Moments of an attempt's end."""
        if not self.plugins:
            return
        if self.plugins.listens("agl_reward_emitted"):
            ids = {"rollout_id": rollout.rollout_id, "attempt_id": attempt.attempt_id}
            for reward in filter(None, map(reward_of, spans)):
                self.plugins.moment("agl_reward_emitted", reward=reward, **ids)
        if self.plugins.listens("agl_rollout_finished"):
            rollout = await self.store.get_rollout_by_id(rollout.rollout_id)
            self.plugins.moment("agl_rollout_finished", rollout=rollout, attempt=attempt)

    async def _run(self, lease: AttemptedRollout, spans: list[Span]) -> Outcome:
        """Run the agent within its limit. One that will not be cancelled is left behind, counted."""
        try:
            context = await self._context(lease, spans)
        except Exception as error:
            return failed(error)
        timeout = lease.rollout.config.timeout_seconds or self.timeout
        work = asyncio.create_task(self._work(lease.rollout, context))
        try:
            await asyncio.wait({work}, timeout=timeout)
            if work.done():
                return work.result() if not work.cancelled() else failed(asyncio.CancelledError())
            return overdue(timeout)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=GRACE)
            if not work.done():
                self.ended["abandoned"] += 1
                log.warning("attempt %s ended, but its agent ignores being cancelled", context.attempt_id)

    async def _work(self, rollout: Rollout, context: AttemptContext) -> Outcome:
        """The agent under its identity. What it raises is its outcome; ``sys.exit()`` ends only the
        attempt.
        """
        result: Any = None
        error: BaseException | None = None
        with attempt_context(context), _rollout_span(rollout):
            try:
                self.agent.on_rollout_start(rollout.input, rollout)
                result = await self._call(rollout, context.resources)
                outcome = settle(result)
                if outcome.reward is not None:
                    emit_reward(outcome.reward)
            except (Exception, SystemExit) as raised:
                error, outcome = raised, failed(raised)
            except asyncio.CancelledError as raised:
                error = raised
                raise
            finally:
                self._close(rollout, result, error)
        return outcome

    def _close(self, rollout: Rollout, result: Any, error: BaseException | None) -> None:
        """The agent's own ``on_rollout_end``; an error in it is logged and changes nothing."""
        try:
            self.agent.on_rollout_end(rollout.input, rollout, result, error)
        except Exception:
            self.ended["end-hook-failed"] += 1
            log.exception("on_rollout_end of rollout %s failed", rollout.rollout_id)

    async def _call(self, rollout: Rollout, resources: dict[str, Resource]) -> Any:
        entry: Callable[..., Any] = self.agent.entry(rollout.mode)
        if self.agent.is_async_in(rollout.mode):
            return await entry(rollout.input, resources, rollout)
        result = await in_thread(entry, rollout.input, resources, rollout)
        return await result if inspect.isawaitable(result) else result

    async def _context(self, lease: AttemptedRollout, spans: list[Span]) -> AttemptContext:
        rollout, attempt = lease.rollout, lease.attempt
        resources = dict(await self._bundle(rollout.resources_id))
        key = None
        if self.gate:
            key = self.gate.open_attempt(
                AttemptInfo(
                    rollout_id=rollout.rollout_id,
                    attempt_id=attempt.attempt_id,
                    run_id=rollout.run_id or "",
                    fence=attempt.fence,
                    mode=rollout.mode,
                    seed=rollout.seed,
                    greedy=bool(rollout.metadata.get("greedy", False)),
                    policies=self.policies,
                )
            )
            resources = {
                name: msgspec.structs.replace(r, api_key=key)
                if isinstance(r, LLM) and r.endpoint == self.gate.url
                else r
                for name, r in resources.items()
            }
        return AttemptContext(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            sink=spans.append,
            key=key,
            gateway=self.gate.url if self.gate else None,
            policies=self.policies,
            resources=resources,
            task=rollout.input,
        )

    async def _bundle(self, resources_id: str | None) -> dict[str, Resource]:
        """The resources of a rollout: its own, else the latest."""
        if resources_id is not None:
            return (await self.store.get_resources_by_id(resources_id)).resources
        latest = await self.store.get_latest_resources()
        return latest.resources if latest else {}


async def _take_all(slots: asyncio.Semaphore, limit: int) -> int:
    """Wait for one free slot, then take every slot that is free."""
    await slots.acquire()
    taken = 1
    while taken < limit and not slots.locked():
        await slots.acquire()
        taken += 1
    return taken


@contextmanager
def _rollout_span(rollout: Rollout) -> Iterator[None]:
    """One span around the agent's run, so that the spans of its framework hang on one tree."""
    if not capture.installed():
        yield
        return
    tracer = trace.get_tracer("agentlightning.runner")
    with tracer.start_as_current_span(ROLLOUT_SPAN, attributes={"agl.task_id": rollout.task_id or ""}):
        yield
