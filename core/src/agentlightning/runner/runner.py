"""The runner: leases rollouts, runs the agent under an attempt's identity, and settles what became of it.

Async agents run as tasks of one loop, sync agents in a pool of threads; ``concurrency`` bounds both. An
attempt has
a wall-clock limit. When it ends, its key is revoked first, then spans and status are written in one
transaction:
whoever reads a finished attempt reads all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
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
from agentlightning.runner.outcome import Outcome, failed, settle
from agentlightning.runner.threads import in_thread
from agentlightning.semconv import ROLLOUT_SPAN
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    Resource,
    Rollout,
    Span,
    new_id,
)

log = logging.getLogger(__name__)


class Gate(Protocol):
    """What the runner needs of the gateway."""

    @property
    def url(self) -> str: ...
    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str) -> None: ...


class Runner:
    """Runs ``agent`` on rollouts of ``store``.

    ``gate``: the gateway; without one the agent calls its endpoints directly and only the wire layer records.
    ``timeout``: seconds for rollouts whose own configuration names none.
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
    ) -> None:
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
        self.ended: Counter[str] = Counter()
        """Attempt status → attempts this runner has settled."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._broken: asyncio.Future[None] | None = None
        """Fails when an attempt could not be settled (the store is gone, say): then serving ends with it."""

    # ------------------------------------------------------------------------------------------ serving
    async def serve(self, stop: asyncio.Event | None = None) -> None:
        """Run rollouts until ``stop`` is set or the task is cancelled; what runs then is finished first.

        Raises what keeps attempts from being settled: a runner that cannot write must not look alive.
        """
        self._broken = asyncio.get_running_loop().create_future()
        beat = asyncio.create_task(self._beat())
        slots = asyncio.Semaphore(self.concurrency)
        try:
            while not (stop and stop.is_set()):
                await slots.acquire()
                free = 1
                while free < self.concurrency and not slots.locked():
                    await slots.acquire()
                    free += 1
                leases = await self._lease(free, stop)
                for lease in leases:
                    self._begin(lease, slots)
                for _ in range(free - len(leases)):
                    slots.release()
        finally:
            beat.cancel()
            if self._running:
                await asyncio.gather(*self._running.values(), return_exceptions=True)
        if self._broken.done():  # an attempt that ran when we were stopped
            self._broken.result()
        self._broken.cancel()

    def _begin(self, lease: AttemptedRollout, slots: asyncio.Semaphore) -> None:
        """Run a lease in the background; its slot is free again when it has ended."""
        attempt_id = lease.attempt.attempt_id
        task = asyncio.create_task(self._attempt(lease))
        self._running[attempt_id] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._running.pop(attempt_id, None)
            slots.release()
            error = None if done.cancelled() else done.exception()
            if error is not None and self._broken is not None and not self._broken.done():
                self._broken.set_exception(error)

        task.add_done_callback(ended)

    async def _lease(self, limit: int, stop: asyncio.Event | None) -> list[AttemptedRollout]:
        """Wait for work, at most until ``stop``."""
        request = asyncio.create_task(
            self.store.dequeue_many_rollouts(self.worker_id, limit, run_id=self.run_id, wait=20.0)
        )
        assert self._broken is not None
        ends: set[asyncio.Future[Any]] = {self._broken}
        if stop:
            ends.add(asyncio.create_task(stop.wait()))
        await asyncio.wait({request, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for end in ends - {self._broken}:
            end.cancel()
        if request.done():
            return request.result()
        request.cancel()
        await asyncio.wait({request})
        if self._broken.done():
            self._broken.result()  # raises
        return request.result() if not request.cancelled() else []

    async def _beat(self) -> None:
        """Tell the store we live; stop attempts whose lease went to another."""
        while True:
            await asyncio.sleep(self.heartbeat)
            try:
                lost = await self.store.heartbeat(self.worker_id, list(self._running))
            except Exception:
                log.exception(
                    "runner %s: heartbeat failed; the next one is in %g s", self.worker_id, self.heartbeat
                )
                continue
            for attempt_id in lost:
                if task := self._running.get(attempt_id):
                    log.warning(
                        "runner %s: attempt %s was given to another; stopping it", self.worker_id, attempt_id
                    )
                    task.cancel()

    async def step(self, task: Any, resources_id: str | None = None, **fields: Any) -> Rollout:
        """Run one task now, without the queue, and return its finished rollout."""
        lease = await self.store.start_rollout(
            task, resources_id=resources_id, worker_id=self.worker_id, **fields
        )
        await self._attempt(lease)
        return await self.store.get_rollout_by_id(lease.rollout.rollout_id)

    # ----------------------------------------------------------------------------------------- one attempt
    async def _attempt(self, lease: AttemptedRollout) -> None:
        rollout, attempt = lease.rollout, lease.attempt
        spans: list[Span] = []
        if self.plugins:
            self.plugins.moment("agl_rollout_started", rollout=rollout, attempt=attempt)
        try:
            outcome = await self._run(lease, spans)
        except asyncio.CancelledError as error:
            outcome = failed(error, None)
        capture.end_attempt(attempt.attempt_id)
        if self.gate:
            await self.gate.close_attempt(attempt.attempt_id)
        spans.extend(outcome.spans)
        try:
            attempt = await self.store.update_attempt(
                rollout.rollout_id, attempt.attempt_id, outcome.status, reason=outcome.reason, spans=spans
            )
            self.ended[outcome.status] += 1
        except AttemptEnded as error:
            self.ended["fenced"] += 1
            log.warning("attempt %s: its end was refused: %s", attempt.attempt_id, error)
        self._tell(rollout, attempt, spans)

    def _tell(self, rollout: Rollout, attempt: Attempt, spans: list[Span]) -> None:
        """Moments of an attempt's end."""
        if not self.plugins:
            return
        if self.plugins.listens("agl_reward_emitted"):
            for reward in filter(None, map(reward_of, spans)):
                ids = {"rollout_id": rollout.rollout_id, "attempt_id": attempt.attempt_id}
                self.plugins.moment("agl_reward_emitted", reward=reward, **ids)
        self.plugins.moment("agl_rollout_finished", rollout=rollout, attempt=attempt)

    async def _run(self, lease: AttemptedRollout, spans: list[Span]) -> Outcome:
        rollout = lease.rollout
        timeout = rollout.config.timeout_seconds or self.timeout
        result: Any = None
        error: BaseException | None = None
        try:
            context = await self._context(lease, spans)
            with attempt_context(context), _rollout_span(rollout):
                self.agent.on_rollout_start(rollout.input, rollout)
                try:
                    async with asyncio.timeout(timeout):
                        result = await self._call(rollout, context.resources)
                except Exception as raised:
                    error = raised
                    raise
                finally:
                    self.agent.on_rollout_end(rollout.input, rollout, result, error)
                outcome = settle(result)
                if outcome.reward is not None:
                    emit_reward(outcome.reward)
                return outcome
        except Exception as raised:
            return failed(raised, timeout)

    async def _call(self, rollout: Rollout, resources: dict[str, Resource]) -> Any:
        entry = self.agent.entry(rollout.mode)
        if self.agent.is_async:
            return await entry(rollout.input, resources, rollout)
        return await in_thread(entry, rollout.input, resources, rollout)

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


@contextmanager
def _rollout_span(rollout: Rollout) -> Iterator[None]:
    """One span around the agent's run, so that the spans of its framework hang on one tree."""
    if not capture.installed():
        yield
        return
    tracer = trace.get_tracer("agentlightning.runner")
    with tracer.start_as_current_span(ROLLOUT_SPAN, attributes={"agl.task_id": rollout.task_id or ""}):
        yield
