"""How every store tries a rollout that says nothing of it: as its run says, else by the default."""

from __future__ import annotations

import math

import pytest
from contract.storing import Clock, call, span

from agentlightning.runner.settings import RunnerSection
from agentlightning.store.base import NotFound, Store
from agentlightning.types import AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from agentlightning.types.failure import read_failure_table
from agentlightning.types.work import MAX_ATTEMPTS, UNRESPONSIVE_SECONDS

NO_TIMES = [math.nan, math.inf, -math.inf, -1.0, 1e300, 10**400]
NO_LIMITS = [*NO_TIMES, 0.0]


class TryingContract:
    """Defaults of rollouts, signs of life, and numbers that cannot be limits."""

    async def test_a_worker_that_died_is_replaced_without_being_asked_for(
        self, store: Store, clock: Clock
    ) -> None:
        made = await store.enqueue_rollout("a task")
        for number in range(1, MAX_ATTEMPTS + 1):
            lease = await store.dequeue_rollout(f"worker {number}")
            assert lease is not None and lease.rollout.rollout_id == made.rollout_id
            clock.now += UNRESPONSIVE_SECONDS - 1
            assert await store.dequeue_rollout("another") is None
            clock.now += 2
        assert await store.dequeue_rollout("another") is None
        done = await store.get_rollout_by_id(made.rollout_id)
        assert (done.status, done.attempts) == (RolloutStatus.FAILED, MAX_ATTEMPTS)
        assert (done.reason or "").startswith("unresponsive: no sign of life within")

    async def test_what_a_worker_stores_is_a_sign_of_life(self, store: Store, clock: Clock) -> None:
        """So a worker that sends no heartbeat keeps its rollout while it calls models or stores spans."""
        await store.enqueue_rollout("a task")
        lease = await store.dequeue_rollout("by hand")
        assert lease is not None
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        for number in range(6):
            clock.now += UNRESPONSIVE_SECONDS - 1
            assert await store.dequeue_rollout("another") is None
            if number % 3 == 0:
                await store.add_span(span(lease))
            elif number % 3 == 1:
                await store.add_calls([call(lease, number)])
            else:
                await store.update_attempt(*ids, metadata={"at": number})
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED)
        assert (await store.get_rollout_by_id(ids[0])).attempts == 1

    async def test_rollouts_of_a_run_are_tried_as_the_run_says(self, store: Store) -> None:
        tried = RunnerSection(max_attempts=5).rollout_config(read_failure_table({"agent-raised": "retry"}))
        await store.add_run("r", {}, tried)
        await store.add_run("r", {}, tried)
        own = RolloutConfig(max_attempts=1)
        one = await store.enqueue_rollout(1, run_id="r")
        many = await store.enqueue_many_rollouts(
            [
                Rollout(rollout_id="", input=2, run_id="r"),
                Rollout(rollout_id="", input=3, run_id="r", config=own),
            ]
        )
        elsewhere = await store.enqueue_rollout(4, run_id="another")
        assert [r.config for r in (one, *many, elsewhere)] == [tried, tried, own, RolloutConfig()]
        assert (await store.get_rollout_by_id(one.rollout_id)).config == tried
        for status in [RolloutStatus.REQUEUING] * 4 + [RolloutStatus.FAILED]:
            lease = await store.start_attempt(one.rollout_id)
            ids = one.rollout_id, lease.attempt.attempt_id
            await store.update_attempt(*ids, AttemptStatus.FAILED, reason="agent-raised: ValueError")
            assert (await store.get_rollout_by_id(one.rollout_id)).status is status

    async def test_a_run_may_be_told_to_try_otherwise(self, store: Store) -> None:
        first, second = RolloutConfig(max_attempts=2), RolloutConfig(max_attempts=4)
        await store.add_run("r", {"k": 1}, first)
        await store.update_run("r", {"k": 2})
        assert (await store.enqueue_rollout(1, run_id="r")).config == first
        await store.update_run("r", {}, second)
        assert (await store.enqueue_rollout(1, run_id="r")).config == second
        with pytest.raises(ValueError, match=r"config\.timeout_seconds"):
            await store.update_run("r", {}, RolloutConfig(timeout_seconds=math.nan))

    async def test_a_number_that_no_timer_can_keep_is_refused(self, store: Store) -> None:
        made = await store.enqueue_rollout(1)
        for value in NO_TIMES:
            with pytest.raises(ValueError, match="wait"):
                await store.dequeue_rollout("w", wait=value)
            with pytest.raises(ValueError, match="timeout"):
                await store.wait_for_rollouts([made.rollout_id], timeout=value)
        for value in NO_LIMITS:
            for name in ("timeout_seconds", "unresponsive_seconds"):
                with pytest.raises(ValueError, match=name):
                    await store.enqueue_rollout(1, config=RolloutConfig(**{name: value}))
        for number in (0, -1, 1 << 63, 10**30):
            with pytest.raises(ValueError, match="max_attempts"):
                await store.update_rollout(made.rollout_id, config=RolloutConfig(max_attempts=number))
            with pytest.raises(ValueError, match="limit"):
                await store.query_rollouts(limit=number)
            with pytest.raises(ValueError, match="limit"):
                await store.dequeue_many_rollouts("w", number)
        with pytest.raises(ValueError, match="grows"):
            await store.count("lost", "why", n=1 << 63)
        assert await store.get_rollout_by_id(made.rollout_id) == made
        lease = await store.dequeue_rollout("w", wait=1e9)
        assert lease is not None and lease.rollout.rollout_id == made.rollout_id

    async def test_what_is_not_on_record_has_no_configuration(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.update_run("nowhere", {}, RolloutConfig())
