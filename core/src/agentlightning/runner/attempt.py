"""One attempt, from its lease to its written end.

Invariant: when an attempt ends, its key is revoked first; then its spans and its status are written in one
transaction. Who reads an ended attempt reads all of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from agentlightning import capture
from agentlightning.capture.emit import find_reward_spans
from agentlightning.gateway import AttemptInfo
from agentlightning.plugins.manager import Plugins
from agentlightning.runner.agent.hosted import hosted
from agentlightning.runner.attempt_keys import AttemptKeys, FetchedKeys, with_attempt_key
from agentlightning.runner.ending import EndWriter
from agentlightning.runner.execution import Execution
from agentlightning.runner.heartbeat import Heartbeat
from agentlightning.runner.outcomes.outcome import CannotRun, Outcome, cancelled, outcome_of_error
from agentlightning.runner.processes.messages import AttemptJob
from agentlightning.runner.processes.pool import WorkerPool
from agentlightning.runner.resources import attempt_resources
from agentlightning.runner.settings import RunnerSection
from agentlightning.store.base import Store
from agentlightning.types import Attempt, AttemptedRollout, Rollout, Span, UsageError, new_id
from agentlightning.types.rewards import reward_of


@dataclass(eq=False, repr=False)
class AttemptRunner:
    """Runs attempts of ``agent`` whose lease it is given, and writes their ends to ``store``."""

    agent: Any
    store: Store
    settings: RunnerSection = RunnerSection(timeout_seconds=None)
    """``timeout_seconds``: the limit of a rollout whose configuration has none."""
    _: KW_ONLY
    attempt_keys: AttemptKeys | None = None
    """The gateway, or keys for a gateway in another process (agl-cluster). Without keys the agent
    calls its endpoints directly, and only the wire layer records.
    """
    plugins: Plugins | None = None
    worker_id: str = field(default_factory=partial(new_id, "worker"))
    heartbeat: float = 5.0
    """Seconds between two heartbeats, at most."""
    own_loop: bool = True
    """Whether agents run on an event loop of their own. Only code of Agent Lightning that shares objects with
    the runner's loop sets ``False``.
    """
    counts: Counter[str] = field(init=False, default_factory=Counter)
    """Attempt status → attempts that ended with it. Further counts: ``fenced`` (ends that the store refused),
    ``abandoned`` (agents that went on after their attempt had ended), ``loop-blocked`` (lines at which an
    agent blocks its event loop), ``stopped-for-another`` (attempts that were stopped because another attempt
    blocked their loop), ``killed`` and ``died`` (worker processes), ``lease-lost``, ``not-queued`` (a named
    rollout that had its lease or end already), ``supplied-refused``, ``heartbeat-failed`` and
    ``end-hook-failed``.
    """

    def __post_init__(self) -> None:
        if self.settings.concurrency < 1:
            raise UsageError("concurrency is 0: at least one rollout must run at a time")
        self.agent = hosted(self.agent, self.plugins)
        self.agent.runner = self
        self._pool: WorkerPool | None = None
        if self.settings.isolation == "process":
            self._pool = WorkerPool(self.agent, self.settings, self.counts)
        self._execution = Execution(self.agent, self.counts, pool=self._pool, own_loop=self.own_loop)
        self._heartbeat = Heartbeat(self.store, self.worker_id, self.heartbeat, self.stop, self.counts)
        self._ends = EndWriter(
            self.store,
            self.settings.policies,
            self.counts,
            calls_recorded=self.attempt_keys is not None,
            judged=self.agent.agent.judged,
        )
        self._agents: dict[str, asyncio.Task[Outcome]] = {}
        """Running agents, by attempt. They can be stopped; the rest of an attempt cannot."""
        self._stopping = False
        """Whether attempts that begin now are stopped at once."""

    async def run(self, lease: AttemptedRollout) -> None:
        """Run an attempt and write its end. Raise the error that prevents this runner from running any
        attempt, or from writing the end.
        """
        spans: list[Span] = []
        attempt_id = lease.attempt.attempt_id
        if self.plugins:
            self.plugins.notify("agl_rollout_started", rollout=lease.rollout, attempt=lease.attempt)
        outcome, fatal = await self._run_agent(lease, spans)
        capture.end_attempt(attempt_id)
        if self.attempt_keys:
            await self.attempt_keys.close_attempt(attempt_id)
        attempt = await self._ends.write(lease, outcome, spans)
        await self._notify_ended(lease.rollout, attempt, [*spans, *outcome.returned])
        if fatal is not None:
            raise fatal

    async def run_lease(self, lease: AttemptedRollout) -> Rollout:
        """Run an attempt with heartbeats of its own, and return its rollout as it then stands."""
        self._heartbeat.start()
        try:
            await self.run(lease)
        finally:
            await self._heartbeat.stop()
        return await self.store.get_rollout_by_id(lease.rollout.rollout_id)

    @property
    def store_is_silent(self) -> bool:
        """Whether the store did not answer the last heartbeat."""
        return self._heartbeat.silent

    def stop(self, attempt_id: str) -> None:
        """Stop the agent of an attempt, if it runs."""
        if attempt_id in self._agents:
            self._agents[attempt_id].cancel()

    def stop_all(self) -> None:
        """Stop all agents, and those that begin from now on. Their attempts end as cancelled."""
        self._stopping = True
        for agent in self._agents.values():
            agent.cancel()

    async def _run_agent(
        self, lease: AttemptedRollout, spans: list[Span]
    ) -> tuple[Outcome, CannotRun | None]:
        """Run the agent while heartbeats keep its lease. Return its outcome, and the error if this runner can
        run no attempt at all.
        """
        attempt_id = lease.attempt.attempt_id
        self._heartbeat.add(attempt_id, lease.rollout.config.unresponsive_seconds)
        agent = self._agents[attempt_id] = asyncio.create_task(self._execute(lease, spans))
        if self._stopping:
            agent.cancel()
        try:
            return await agent, None
        except asyncio.CancelledError:
            return cancelled(), None
        except CannotRun as error:
            return cancelled(str(error)), error
        finally:
            self._heartbeat.discard(attempt_id)
            del self._agents[attempt_id]

    async def _execute(self, lease: AttemptedRollout, spans: list[Span]) -> Outcome:
        try:
            job = await self._job(lease)
        except CannotRun:
            raise
        except Exception as error:
            return outcome_of_error(error)
        timeout = lease.rollout.config.timeout_seconds or self.settings.timeout_seconds
        return await self._execution.run(lease, job, timeout, spans)

    async def _job(self, lease: AttemptedRollout) -> AttemptJob:
        """Open the attempt at the gateway and return what the agent needs to run."""
        rollout, attempt = lease.rollout, lease.attempt
        info = AttemptInfo.of(rollout, attempt, self.settings.policies)
        resources = await attempt_resources(self.store, rollout)
        if isinstance(self.attempt_keys, FetchedKeys):
            await self.attempt_keys.fetch(info)
        resources, key, gateway = with_attempt_key(resources, self.attempt_keys, info)
        return AttemptJob(
            rollout=rollout,
            attempt_id=attempt.attempt_id,
            key=key,
            gateway=gateway,
            policies=self.settings.policies,
            resources=resources,
        )

    async def _notify_ended(self, rollout: Rollout, attempt: Attempt, spans: list[Span]) -> None:
        if not self.plugins:
            return
        if self.plugins.has_listeners("agl_reward_emitted"):
            notify_rewards(self.plugins, spans)
        if self.plugins.has_listeners("agl_rollout_finished"):
            rollout = await self.store.get_rollout_by_id(rollout.rollout_id)
            self.plugins.notify("agl_rollout_finished", rollout=rollout, attempt=attempt)


def notify_rewards(plugins: Plugins, spans: Iterable[Span]) -> None:
    """Notify plugins of the rewards among the spans of an attempt."""
    for span in find_reward_spans(spans):
        ids = {"rollout_id": span.rollout_id, "attempt_id": span.attempt_id}
        plugins.notify("agl_reward_emitted", reward=reward_of(span), **ids)
