"""One attempt, from its lease to its written end.

Invariant: when an attempt ends, its key is revoked first; then spans and status are written in one
transaction. A reader of an ended attempt reads all of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agentlightning import capture
from agentlightning.capture.emit.rewards import find_reward_spans
from agentlightning.gateway import AttemptInfo
from agentlightning.gateway.admission.seeds import root_seed
from agentlightning.plugins.manager import Plugins
from agentlightning.runner.attempt_keys import AttemptKeys, CannotRun, with_attempt_key
from agentlightning.runner.execute import AttemptResult
from agentlightning.runner.execution import Execution
from agentlightning.runner.heartbeat import Heartbeat
from agentlightning.runner.outcomes.ending import EndWriter
from agentlightning.runner.outcomes.outcome import cancelled, outcome_of_error
from agentlightning.runner.processes.messages import AttemptJob
from agentlightning.runner.resources import attempt_resources
from agentlightning.store.base import Store
from agentlightning.types import Attempt, AttemptedRollout, Rollout, Span
from agentlightning.types.rewards import reward_of


@dataclass(slots=True)
class AttemptRunner:
    """Runs leased attempts. The fields are arguments of :class:`.Runner`."""

    store: Store
    execution: Execution
    counts: Counter[str]
    worker_id: str
    heartbeat_seconds: float
    attempt_keys: AttemptKeys | None
    plugins: Plugins | None
    policies: dict[str, str]
    timeout_seconds: float | None
    stopping: bool = False
    """Whether attempts that begin now are stopped at once."""
    heartbeat: Heartbeat = field(init=False)
    _agents: dict[str, asyncio.Task[AttemptResult]] = field(default_factory=dict)
    """Agents at work, by attempt. They can be stopped; the rest of an attempt cannot."""

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat(self.store, self.worker_id, self.heartbeat_seconds, self.stop, self.counts)

    async def run(self, lease: AttemptedRollout) -> None:
        """Run an attempt and write its end. Raises what keeps the runner from running any attempt, and what
        keeps the end from being written.
        """
        spans: list[Span] = []
        if self.plugins:
            self.plugins.notify("agl_rollout_started", rollout=lease.rollout, attempt=lease.attempt)
        result, fatal = await self._run_agent(lease, spans)
        capture.end_attempt(lease.attempt.attempt_id)
        if self.attempt_keys:
            await self.attempt_keys.close_attempt(lease.attempt.attempt_id)
        recorded = self.attempt_keys is not None
        ends = EndWriter(self.store, self.policies, self.counts, calls_recorded=recorded)
        attempt = await ends.write(lease, result, spans)
        await self._notify_ended(lease.rollout, attempt, [*spans, *result.returned])
        if fatal is not None:
            raise fatal

    def stop(self, attempt_id: str) -> None:
        """Stop the agent of an attempt, if it is at work."""
        if attempt_id in self._agents:
            self._agents[attempt_id].cancel()

    def stop_all(self) -> None:
        """Stop every agent at work, and those that begin from now on."""
        self.stopping = True
        for agent in self._agents.values():
            agent.cancel()

    async def _run_agent(
        self, lease: AttemptedRollout, spans: list[Span]
    ) -> tuple[AttemptResult, CannotRun | None]:
        """Run the agent while the lease is kept alive; why this runner can run no attempt at all, if so."""
        attempt_id = lease.attempt.attempt_id
        self.heartbeat.add(attempt_id, lease.rollout.config.unresponsive_seconds)
        agent = self._agents[attempt_id] = asyncio.create_task(self._execute(lease, spans))
        if self.stopping:
            agent.cancel()
        try:
            return await agent, None
        except asyncio.CancelledError:
            return AttemptResult(cancelled()), None
        except CannotRun as error:
            return AttemptResult(cancelled(str(error))), error
        finally:
            self.heartbeat.discard(attempt_id)
            del self._agents[attempt_id]

    async def _execute(self, lease: AttemptedRollout, spans: list[Span]) -> AttemptResult:
        try:
            job = await self._job(lease)
        except CannotRun:
            raise
        except Exception as error:
            return AttemptResult(outcome_of_error(error))
        timeout = lease.rollout.config.timeout_seconds or self.timeout_seconds
        return await self.execution.run(lease, job, timeout, spans)

    async def _job(self, lease: AttemptedRollout) -> AttemptJob:
        """What the agent is given: its task, and the rollout's resources with the attempt's key in them."""
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
        resources = await attempt_resources(self.store, rollout)
        resources, key, gateway = with_attempt_key(resources, self.attempt_keys, info)
        return AttemptJob(
            rollout=rollout,
            attempt_id=attempt.attempt_id,
            key=key,
            gateway=gateway,
            policies=self.policies,
            resources=resources,
        )

    async def _notify_ended(self, rollout: Rollout, attempt: Attempt, spans: list[Span]) -> None:
        if not self.plugins:
            return
        if self.plugins.has_listeners("agl_reward_emitted"):
            ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": attempt.attempt_id}
            for reward in filter(None, map(reward_of, find_reward_spans(spans))):
                self.plugins.notify("agl_reward_emitted", reward=reward, **ids)
        if self.plugins.has_listeners("agl_rollout_finished"):
            rollout = await self.store.get_rollout_by_id(rollout.rollout_id)
            self.plugins.notify("agl_rollout_finished", rollout=rollout, attempt=attempt)
