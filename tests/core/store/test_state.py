"""A store against a model of it: whatever order things happen in, states and refusals agree."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from contract.store import Clock, span
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from agentlightning.store.base import AttemptEnded, Conflict
from agentlightning.store.sqlite import SQLiteStore
from agentlightning.types import AttemptedRollout, AttemptStatus, RolloutConfig, RolloutStatus

SILENCE = 30.0
ENDS = [AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.TIMEOUT, AttemptStatus.UNRESPONSIVE]


@dataclass
class Model:
    """What a rollout should look like."""

    order: int
    retries: bool
    status: str = "queuing"
    attempts: int = 0
    alive: bool = False
    heard: float = 0.0
    spans: dict[int, int] = field(default_factory=dict)

    def end(self, status: AttemptStatus) -> None:
        self.alive = False
        if status is AttemptStatus.SUCCEEDED:
            self.status = "succeeded"
        else:
            self.status = "requeuing" if self.retries and self.attempts < 2 else "failed"


class StoreMachine(RuleBasedStateMachine):
    """Rules are the store's methods; the model is twenty lines."""

    leases: Bundle[AttemptedRollout] = Bundle("leases")
    rollouts: Bundle[str] = Bundle("rollouts")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.store = SQLiteStore(":memory:", clock=self.clock)
        self.model: dict[str, Model] = {}
        self.revivable: set[str] = set()
        self.refused = 0

    def teardown(self) -> None:
        self.do(self.store.close())
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @rule(target=rollouts, retries=st.booleans())
    def enqueue(self, retries: bool) -> str:
        config = RolloutConfig(
            unresponsive_seconds=SILENCE,
            max_attempts=2 if retries else 1,
            retry_condition=[s for s in ENDS if s is not AttemptStatus.SUCCEEDED],
        )
        made = self.do(self.store.enqueue_rollout(len(self.model), config=config))
        self.model[made.rollout_id] = Model(len(self.model), retries)
        return str(made.rollout_id)

    @rule(target=leases)
    def dequeue(self) -> Any:
        lease = self.do(self.store.dequeue_rollout("w"))
        queued = [r for r, m in self.model.items() if m.status in ("queuing", "requeuing")]
        if not queued:
            self.expire()
            queued = [r for r, m in self.model.items() if m.status in ("queuing", "requeuing")]
        if not queued:
            assert lease is None
            return self.enqueue_and_start()
        first = min(queued, key=lambda r: self.model[r].order)
        assert lease is not None and lease.rollout.rollout_id == first
        self.leased(first)
        return lease

    def enqueue_and_start(self) -> AttemptedRollout:
        lease: AttemptedRollout = self.do(self.store.start_attempt(self.enqueue(False)))
        self.leased(lease.rollout.rollout_id)
        return lease

    def leased(self, rollout_id: str) -> None:
        model = self.model[rollout_id]
        model.status, model.alive, model.heard = "preparing", True, self.clock.now
        model.attempts += 1
        self.revivable.discard(rollout_id)

    def writes(self, lease: AttemptedRollout) -> bool:
        model = self.model[lease.rollout.rollout_id]
        latest = lease.attempt.sequence_id == model.attempts
        return latest and (model.alive or lease.rollout.rollout_id in self.revivable)

    def live(self, lease: AttemptedRollout) -> Model:
        model = self.model[lease.rollout.rollout_id]
        self.revivable.discard(lease.rollout.rollout_id)
        model.status, model.alive, model.heard = "running", True, self.clock.now
        return model

    @rule(lease=leases)
    def heartbeat(self, lease: AttemptedRollout) -> None:
        lost = self.do(self.store.heartbeat("w", [lease.attempt.attempt_id]))
        assert lost == ([] if self.writes(lease) else [lease.attempt.attempt_id])
        if not lost:
            self.live(lease)

    @rule(lease=leases)
    def add_span(self, lease: AttemptedRollout) -> None:
        try:
            stored = self.do(self.store.add_span(span(lease)))
        except AttemptEnded:
            assert not self.writes(lease)
            self.refused += 1
            return
        assert self.writes(lease)
        number = lease.attempt.sequence_id
        model = self.live(lease)
        model.spans[number] = model.spans.get(number, 0) + 1
        assert stored.sequence_id == model.spans[number]

    @rule(lease=leases, status=st.sampled_from(ENDS))
    def finish(self, lease: AttemptedRollout, status: AttemptStatus) -> None:
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        try:
            self.do(self.store.update_attempt(*ids, status))
        except AttemptEnded:
            assert not self.writes(lease)
            self.refused += 1
            return
        assert self.writes(lease)
        model = self.model[ids[0]]
        self.revivable.discard(ids[0])
        model.end(status)
        if status is AttemptStatus.UNRESPONSIVE and model.status == "requeuing":
            self.revivable.add(ids[0])

    @rule(rollout_id=rollouts, status=st.sampled_from([RolloutStatus.CANCELLED, RolloutStatus.REQUEUING]))
    def order(self, rollout_id: str, status: RolloutStatus) -> None:
        model = self.model[rollout_id]
        if model.status == status:
            return
        try:
            self.do(self.store.update_rollout(rollout_id, status))
        except Conflict:
            assert model.status in ("succeeded", "failed", "cancelled")
            return
        model.status, model.alive = str(status), False
        if status is RolloutStatus.CANCELLED:
            self.revivable.discard(rollout_id)

    @rule(seconds=st.sampled_from([1.0, 20.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.do(self.store.expire())
        self.expire()

    def expire(self) -> None:
        for rollout_id, model in self.model.items():
            if model.alive and model.heard + SILENCE <= self.clock.now:
                model.end(AttemptStatus.UNRESPONSIVE)
                if model.status == "requeuing":
                    self.revivable.add(rollout_id)

    @invariant()
    def the_store_agrees(self) -> None:
        found = {r.rollout_id: (r.status.value, r.attempts) for r in self.do(self.store.query_rollouts())}
        assert found == {r: (m.status, m.attempts) for r, m in self.model.items()}
        assert sum(self.do(self.store.counts()).get("refused", {}).values()) == self.refused


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestStoreMachine = StoreMachine.TestCase
