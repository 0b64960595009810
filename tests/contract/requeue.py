"""What every store does with failures of a kind, with work that is cancelled, and with work done again."""

from __future__ import annotations

import pytest
from contract.storing import Clock, call, reward, span

from agentlightning.semconv import RESAMPLED
from agentlightning.store.base import AttemptEnded, NotFound, Store
from agentlightning.types import AttemptedRollout, AttemptStatus, RolloutConfig, RolloutStatus
from agentlightning.types.failure import failure_kind

FAILED, SUCCEEDED = AttemptStatus.FAILED, AttemptStatus.SUCCEEDED


async def leased(store: Store, config: RolloutConfig | None = None) -> AttemptedRollout:
    """A fresh rollout under a lease."""
    await store.enqueue_rollout({"q": 1}, config=config)
    lease = await store.dequeue_rollout("w")
    assert lease is not None
    return lease


async def again(store: Store, rollout_id: str) -> AttemptedRollout:
    """The next lease, which must be of this rollout."""
    lease = await store.dequeue_rollout("w")
    assert lease is not None and lease.rollout.rollout_id == rollout_id
    return lease


class RequeueContract:
    """Another attempt: because the failure is of a kind, or because somebody asks for it."""

    async def test_a_failure_is_tried_again_by_its_kind(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=3, retry_on=["model-5xx", "failed"])
        for reason, retried in (
            ("model-5xx: 503 from the engine", True),
            ("model-5xx", True),
            ("ValueError: nobody named a kind", True),
            ("agent-raised: ValueError: boom", False),
        ):
            lease = await leased(store, config)
            ids = lease.rollout.rollout_id, lease.attempt.attempt_id
            await store.update_attempt(*ids, FAILED, reason=reason)
            found = await store.get_rollout_by_id(ids[0])
            expected = RolloutStatus.REQUEUING if retried else RolloutStatus.FAILED
            assert (found.status, found.reason) == (expected, None if retried else reason)
            await store.update_rollout(ids[0], RolloutStatus.CANCELLED) if retried else None

    async def test_kinds_are_tried_as_often_as_allowed(self, store: Store) -> None:
        lease = await leased(store, RolloutConfig(max_attempts=2, retry_on=["no-call"]))
        rollout_id = lease.rollout.rollout_id
        await store.update_attempt(rollout_id, lease.attempt.attempt_id, FAILED, reason="no-call")
        second = await again(store, rollout_id)
        await store.update_attempt(rollout_id, second.attempt.attempt_id, FAILED, reason="no-call: none")
        done = await store.get_rollout_by_id(rollout_id)
        assert (done.status, done.attempts, done.reason) == (RolloutStatus.FAILED, 2, "no-call: none")

    async def test_only_failures_of_its_own_make_an_attempt_sample_anew(self, store: Store) -> None:
        """What was cut short is repeated; what failed by itself would fail again from the same tokens."""
        kinds = ["agent-raised", "failed", "timeout", "model-5xx", "cancelled"]
        lease = await leased(store, RolloutConfig(max_attempts=10, retry_on=kinds))
        rollout_id = lease.rollout.rollout_id
        for status, reason, failed in (
            (FAILED, "model-5xx: 503", 0),
            (FAILED, "cancelled: the runner was told to end", 0),
            (FAILED, "agent-raised: ValueError", 1),
            (FAILED, "model-5xx", 1),
            (AttemptStatus.TIMEOUT, None, 2),
            (FAILED, "it names no kind", 3),
        ):
            await store.update_attempt(rollout_id, lease.attempt.attempt_id, status, reason=reason)
            lease = await again(store, rollout_id)
            assert lease.attempt.metadata.get(RESAMPLED, 0) == failed
        taken = await store.start_attempt(rollout_id)  # the one before is unresponsive
        assert taken.attempt.metadata == {RESAMPLED: 3}
        await store.requeue_rollouts([rollout_id], reason="cancelled: the run went on")
        lease = await again(store, rollout_id)
        assert lease.attempt.metadata == {}  # afresh
        assert [a.metadata.get(RESAMPLED, 0) for a in await store.query_attempts(rollout_id)][-2:] == [3, 0]

    @pytest.mark.parametrize("status", [AttemptStatus.TIMEOUT, AttemptStatus.UNRESPONSIVE])
    async def test_silence_and_timeouts_are_kinds(self, store: Store, status: AttemptStatus) -> None:
        config = RolloutConfig(max_attempts=2, retry_on=[str(status)])
        lease = await leased(store, config)
        rollout_id = lease.rollout.rollout_id
        await store.update_attempt(rollout_id, lease.attempt.attempt_id, status, reason="it took 61 s")
        assert (await store.get_rollout_by_id(rollout_id)).status is RolloutStatus.REQUEUING
        second = await again(store, rollout_id)
        await store.update_attempt(rollout_id, second.attempt.attempt_id, status, reason="it took 61 s")
        done = await store.get_rollout_by_id(rollout_id)
        assert (done.status, done.reason) == (RolloutStatus.FAILED, f"{status}: it took 61 s")

    async def test_what_the_store_ends_itself_names_its_kind(self, store: Store, clock: Clock) -> None:
        silent = await leased(store, RolloutConfig(unresponsive_seconds=30.0, max_attempts=1))
        slow = await leased(store, RolloutConfig(timeout_seconds=30.0, unresponsive_seconds=None))
        clock.now += 60
        assert await store.dequeue_rollout("w") is None
        for lease, kind in ((silent, "unresponsive"), (slow, "timeout")):
            done = await store.get_rollout_by_id(lease.rollout.rollout_id)
            (attempt,) = await store.query_attempts(lease.rollout.rollout_id)
            assert failure_kind(done.reason) == failure_kind(attempt.reason) == attempt.status == kind
            assert "30 s" in (done.reason or "")

    async def test_a_cancelled_rollout_is_lost_to_its_worker(self, store: Store) -> None:
        lease = await leased(store)
        attempt_id = lease.attempt.attempt_id
        assert await store.heartbeat("w", [attempt_id]) == []
        await store.update_rollout(lease.rollout.rollout_id, RolloutStatus.CANCELLED)
        assert await store.heartbeat("w", [attempt_id]) == [attempt_id]
        latest = await store.get_latest_attempt(lease.rollout.rollout_id)
        assert latest is not None and latest.status is FAILED and failure_kind(latest.reason) == "cancelled"

    async def test_requeued_rollouts_start_afresh(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=2, retry_on=["model-5xx"])
        ended, live = await leased(store, config), await leased(store, config)
        done = await leased(store, config)
        ids = [x.rollout.rollout_id for x in (ended, live, done)]
        await store.update_attempt(ids[0], ended.attempt.attempt_id, FAILED, reason="model-5xx")
        second = await again(store, ids[0])
        await store.update_attempt(ids[0], second.attempt.attempt_id, FAILED, reason="model-5xx")
        await store.add_calls([call(done)])
        await store.update_attempt(ids[2], done.attempt.attempt_id, SUCCEEDED, spans=[reward(done, 1.0)])
        waiting = await store.enqueue_rollout("waits")
        ids.append(waiting.rollout_id)
        for _ in range(2):
            back = await store.requeue_rollouts(ids, reason="cancelled: resumed", request_id="q")
            assert [r.rollout_id for r in back] == ids
        found = [await store.get_rollout_by_id(i) for i in ids]
        assert found == back
        assert [(r.status, r.end_time, r.reason) for r in found] == [
            *[(RolloutStatus.REQUEUING, None, None)] * 3,
            (RolloutStatus.QUEUING, None, None),
        ]
        assert [(a.status, a.reason) for a in await store.query_attempts(ids[0])] == [
            (FAILED, "model-5xx")
        ] * 2
        (closed,) = await store.query_attempts(ids[1])
        assert (closed.status, closed.reason) == (AttemptStatus.UNRESPONSIVE, "cancelled: resumed")
        (kept,) = await store.query_attempts(ids[2])
        assert kept.status is SUCCEEDED and len(await store.query_calls(ids[2], None)) == 1
        for number in (3, 4):  # the full allowance again
            lease = await again(store, ids[0])
            assert (lease.attempt.sequence_id, lease.attempt.fence) == (number, number)
            await store.update_attempt(ids[0], lease.attempt.attempt_id, FAILED, reason="model-5xx")
        assert (await store.get_rollout_by_id(ids[0])).status is RolloutStatus.FAILED

    @pytest.mark.parametrize("taken", [False, True])
    async def test_attempts_from_before_may_no_longer_write(self, store: Store, taken: bool) -> None:
        lease = await leased(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        assert await store.heartbeat("w", [ids[1]]) == []
        await store.requeue_rollouts([ids[0]], reason="resumed")
        if taken:
            await again(store, ids[0])
        assert await store.heartbeat("w", [ids[1]]) == [ids[1]]
        for write in (
            lambda: store.add_span(span(lease)),
            lambda: store.add_calls([call(lease), call(lease, 1)]),
            lambda: store.update_attempt(*ids, SUCCEEDED),
        ):
            with pytest.raises(AttemptEnded, match="later attempt" if taken else "back into the queue"):
                await write()
        refused = (await store.counts(ids[0]))["refused"]
        assert refused == {"spans-fenced": 1, "calls-fenced": 2, "update-fenced": 1}
        assert (await store.get_rollout_by_id(ids[0])).status == ("preparing" if taken else "requeuing")

    async def test_a_silent_attempt_does_not_revive_once_requeued(self, store: Store, clock: Clock) -> None:
        config = RolloutConfig(unresponsive_seconds=30.0, max_attempts=2, retry_on=["unresponsive"])
        lease = await leased(store, config)
        clock.now += 60
        assert await store.dequeue_rollout("w2", run_id="other") is None
        await store.requeue_rollouts([lease.rollout.rollout_id], reason="resumed")
        with pytest.raises(AttemptEnded):
            await store.add_span(span(lease))

    async def test_a_waiting_worker_hears_of_requeued_work(self, store: Store) -> None:
        lease = await leased(store)
        rollout_id = lease.rollout.rollout_id
        await store.update_rollout(rollout_id, RolloutStatus.CANCELLED)
        await store.requeue_rollouts([rollout_id], reason="resumed")
        second = await store.dequeue_rollout("w", wait=30.0)
        assert second is not None and second.attempt.sequence_id == 2

    async def test_requeueing_is_done_for_all_or_none(self, store: Store) -> None:
        lease = await leased(store)
        with pytest.raises(NotFound, match="ro-x"):
            await store.requeue_rollouts([lease.rollout.rollout_id, "ro-x"], reason="resumed")
        await store.add_span(span(lease))

    async def test_requeued_work_is_done_with_the_newest_resources(self, store: Store) -> None:
        made = await store.add_resources({"prompt": "one"})
        await store.enqueue_rollout(1, resources_id=made.resources_id)
        lease = await store.dequeue_rollout("w")
        assert lease is not None
        await store.update_resources(made.resources_id, {"prompt": "two"})
        await store.requeue_rollouts([lease.rollout.rollout_id], reason="resumed")
        second = await again(store, lease.rollout.rollout_id)
        assert second.rollout.resources_id == made.resources_id
        assert (await store.get_resources_by_id(made.resources_id)).version == 2
