"""What every store does. A store's test module inherits :class:`StoreContract` and provides ``store``.

The fixture ``clock`` is the store's clock, so that leases expire without waiting.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest
from contract.door import DoorContract
from contract.input import InputContract
from contract.paging import PagingContract
from contract.requeue import RequeueContract
from contract.resources import PinContract
from contract.rewards import RewardContract
from contract.storing import Clock, call, reward, span
from contract.trying import TryingContract

from agentlightning import semconv
from agentlightning.store.base import AttemptEnded, Conflict, NotFound, Store
from agentlightning.types import (
    LLM,
    AttemptedRollout,
    AttemptStatus,
    AuditLink,
    JsonResource,
    PromptTemplate,
    Rollout,
    RolloutConfig,
    RolloutFingerprint,
    RolloutStatus,
    StepReport,
)


class StoreContract(
    RequeueContract,
    PagingContract,
    InputContract,
    DoorContract,
    PinContract,
    RewardContract,
    TryingContract,
):
    """Behaviour that all stores share."""

    async def lease(self, store: Store, **fields: Any) -> AttemptedRollout:
        """A fresh rollout under a lease."""
        await store.enqueue_rollout({"q": 1}, **fields)
        lease = await store.dequeue_rollout("w")
        assert lease is not None
        return lease

    # -- queue

    async def test_a_rollout_goes_from_queue_to_success(self, store: Store) -> None:
        made = await store.enqueue_rollout(
            {"question": "2+2", "none": None},
            mode="val",
            metadata={"k": [1, 2.5]},
            run_id="run",
            task_id="t1",
            group_id="g1",
            sample=3,
            seed=7,
        )
        assert made.rollout_id.startswith("ro-") and made.status is RolloutStatus.QUEUING
        assert await store.get_rollout_by_id(made.rollout_id) == made
        lease = await store.dequeue_rollout("w1")
        assert lease is not None and lease.attempt.attempt_id.startswith("at-")
        assert (lease.attempt.fence, lease.attempt.sequence_id, lease.attempt.worker_id) == (1, 1, "w1")
        assert lease.rollout.status is RolloutStatus.PREPARING
        assert lease.rollout.input == {"question": "2+2", "none": None}
        assert await store.heartbeat("w1", [lease.attempt.attempt_id]) == []
        assert (await store.get_rollout_by_id(made.rollout_id)).status is RolloutStatus.RUNNING
        await store.update_attempt(made.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
        (done,) = await store.wait_for_rollouts([made.rollout_id])
        assert done.status is RolloutStatus.SUCCEEDED and done.end_time is not None
        assert (done.seed, done.sample, done.group_id, done.metadata) == (7, 3, "g1", {"k": [1, 2.5]})

    async def test_the_queue_is_first_come_first_served(self, store: Store) -> None:
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(5)]
        leases = await store.dequeue_many_rollouts("w", limit=3)
        leases += await store.dequeue_many_rollouts("w", limit=3)
        assert [x.rollout.rollout_id for x in leases] == ids
        assert await store.dequeue_rollout("w") is None

    async def test_dequeue_of_a_run_takes_only_its_rollouts(self, store: Store) -> None:
        await store.enqueue_rollout(1, run_id="a")
        other = await store.enqueue_rollout(2, run_id="b")
        lease = await store.dequeue_rollout(run_id="b")
        assert lease is not None and lease.rollout.rollout_id == other.rollout_id
        assert await store.dequeue_rollout(run_id="b") is None

    async def test_a_waiting_worker_is_woken_by_new_work(self, store: Store) -> None:
        waiting = [asyncio.create_task(store.dequeue_rollout("w", wait=30.0)) for _ in range(3)]
        first = await store.enqueue_rollout(1)
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [t.result().rollout.rollout_id for t in done] == [first.rollout_id]  # type: ignore[union-attr]
        await store.enqueue_many_rollouts([Rollout(rollout_id="", input=2), Rollout(rollout_id="", input=3)])
        rest = await asyncio.gather(*pending)
        assert sorted(x.rollout.input for x in rest if x) == [2, 3]

    async def test_a_cancelled_worker_leaves_its_turn_to_the_next(self, store: Store) -> None:
        first = asyncio.create_task(store.dequeue_rollout("w1", wait=30.0))
        second = asyncio.create_task(store.dequeue_rollout("w2", wait=30.0))
        await store.counts()
        first.cancel()
        await store.enqueue_rollout(1)
        lease = await second
        assert lease is not None and lease.rollout.input == 1

    async def test_concurrent_workers_lease_each_rollout_once(self, store: Store) -> None:
        await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(1000)])
        taken: list[int] = []

        async def worker(name: str) -> None:
            while found := await store.dequeue_many_rollouts(name, limit=4):
                taken.extend(x.rollout.input for x in found)

        await asyncio.gather(*(worker(f"w{i}") for i in range(64)))
        assert sorted(taken) == list(range(1000))

    async def test_enqueue_many_keeps_order_and_is_done_once_per_id(self, store: Store) -> None:
        given = [Rollout(rollout_id=f"ro-{i}", input=i, run_id="r") for i in range(3)]
        first = await store.enqueue_many_rollouts(given)
        again = await store.enqueue_many_rollouts(given)
        assert [r.rollout_id for r in first] == [r.rollout_id for r in again] == ["ro-0", "ro-1", "ro-2"]
        assert len(await store.query_rollouts(run_id="r")) == 3
        with pytest.raises(Conflict, match="another input"):
            await store.enqueue_rollout("other", rollout_id="ro-1", run_id="r")

    async def test_bad_rollouts_are_refused_with_the_field(self, store: Store) -> None:
        with pytest.raises(ValueError, match="mode"):
            await store.enqueue_rollout(1, mode="practice")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_attempts"):
            await store.enqueue_rollout(1, config=RolloutConfig(max_attempts=0))
        with pytest.raises(NotFound, match="rs-nope"):
            await store.enqueue_rollout(1, resources_id="rs-nope")
        with pytest.raises(TypeError, match="object"):
            await store.enqueue_rollout(object())

    # -- ends, retries, fences

    async def test_a_failed_attempt_is_retried_while_the_configuration_allows(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=2, retry_condition=[AttemptStatus.FAILED])
        lease = await self.lease(store, config=config)
        rollout_id = lease.rollout.rollout_id
        await store.update_attempt(rollout_id, lease.attempt.attempt_id, AttemptStatus.FAILED, reason="x")
        assert (await store.get_rollout_by_id(rollout_id)).status is RolloutStatus.REQUEUING
        second = await store.dequeue_rollout("w")
        assert second is not None and (second.attempt.sequence_id, second.attempt.fence) == (2, 2)
        await store.update_attempt(rollout_id, second.attempt.attempt_id, AttemptStatus.FAILED, reason="boom")
        done = await store.get_rollout_by_id(rollout_id)
        assert (done.status, done.attempts, done.reason) == (RolloutStatus.FAILED, 2, "boom")
        assert [a.status for a in await store.query_attempts(rollout_id)] == [AttemptStatus.FAILED] * 2

    async def test_without_a_condition_a_failure_is_final(self, store: Store) -> None:
        lease = await self.lease(store, config=RolloutConfig(max_attempts=5))
        rollout_id = lease.rollout.rollout_id
        await store.update_attempt(rollout_id, lease.attempt.attempt_id, AttemptStatus.TIMEOUT)
        done = await store.get_rollout_by_id(rollout_id)
        assert (done.status, done.reason) == (RolloutStatus.FAILED, "timeout")

    async def test_late_writes_are_refused_and_counted(self, store: Store) -> None:
        lease = await self.lease(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED)
        with pytest.raises(AttemptEnded, match="succeeded"):
            await store.add_span(span(lease))
        for _ in range(2):
            with pytest.raises(AttemptEnded):
                await store.add_calls([call(lease), call(lease, 1)], request_id="twice")
        with pytest.raises(AttemptEnded):
            await store.update_attempt(*ids, AttemptStatus.FAILED)
        refused = (await store.counts(lease.rollout.rollout_id))["refused"]
        assert refused == {
            "spans-after-succeeded": 1,
            "calls-after-succeeded": 2,
            "update-after-succeeded": 1,
        }
        assert await store.spans(ids[0]) == [] and await store.query_calls(ids[0]) == []
        assert await store.heartbeat("w", [ids[1], "at-unknown"]) == [ids[1], "at-unknown"]

    async def test_a_taken_over_attempt_is_fenced(self, store: Store) -> None:
        lease = await self.lease(store)
        later = await store.start_attempt(lease.rollout.rollout_id, worker_id="w2")
        assert later.attempt.fence == 2
        with pytest.raises(AttemptEnded, match="later attempt"):
            await store.add_calls([call(lease)], fence=1)
        with pytest.raises(AttemptEnded):
            await store.add_calls([call(later)], fence=1)
        await store.add_calls([call(later)], fence=2)
        assert (await store.counts())["refused"] == {"calls-fenced": 2}
        latest = await store.get_latest_attempt(lease.rollout.rollout_id)
        assert latest is not None and latest.attempt_id == later.attempt.attempt_id

    async def test_a_named_rollout_is_leased_from_the_queue_only_once(self, store: Store) -> None:
        made = await store.enqueue_rollout(1)
        lease = await store.start_attempt(made.rollout_id, worker_id="w", queued=True)
        assert (lease.attempt.fence, lease.attempt.worker_id) == (1, "w")
        with pytest.raises(Conflict, match="another worker has its lease"):
            await store.start_attempt(made.rollout_id, worker_id="w2", queued=True)
        assert await store.dequeue_rollout("w3") is None
        await store.requeue_rollouts([made.rollout_id], reason="cancelled: again")
        again = await store.start_attempt(made.rollout_id, worker_id="w2", queued=True)
        assert (again.attempt.fence, again.attempt.worker_id) == (2, "w2")

    async def test_silence_makes_an_attempt_unresponsive(self, store: Store, clock: Clock) -> None:
        config = RolloutConfig(
            unresponsive_seconds=30.0, max_attempts=2, retry_condition=[AttemptStatus.UNRESPONSIVE]
        )
        lease = await self.lease(store, config=config)
        rollout_id = lease.rollout.rollout_id
        clock.now += 20
        assert await store.heartbeat("w", [lease.attempt.attempt_id]) == []
        clock.now += 20
        assert await store.dequeue_rollout("w2") is None
        clock.now += 20
        second = await store.dequeue_rollout("w2")
        assert second is not None and second.rollout.rollout_id == rollout_id
        with pytest.raises(AttemptEnded):
            await store.add_span(span(lease))
        assert await store.heartbeat("w", [lease.attempt.attempt_id]) == [lease.attempt.attempt_id]

    async def test_an_unresponsive_attempt_that_nobody_replaced_comes_back(
        self, store: Store, clock: Clock
    ) -> None:
        config = RolloutConfig(
            unresponsive_seconds=30.0, max_attempts=2, retry_condition=[AttemptStatus.UNRESPONSIVE]
        )
        lease = await self.lease(store, config=config, run_id="mine")
        clock.now += 60
        assert await store.dequeue_rollout("w2", run_id="other") is None
        attempt = await store.get_latest_attempt(lease.rollout.rollout_id)
        assert attempt is not None and attempt.status is AttemptStatus.UNRESPONSIVE
        await store.add_span(span(lease))
        assert await store.dequeue_rollout("w2") is None
        await store.update_attempt(
            lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED
        )
        assert (await store.get_rollout_by_id(lease.rollout.rollout_id)).status is RolloutStatus.SUCCEEDED

    async def test_a_timeout_ends_a_rollout_whose_worker_is_gone(self, store: Store, clock: Clock) -> None:
        lease = await self.lease(store, config=RolloutConfig(timeout_seconds=60.0, unresponsive_seconds=None))
        clock.now += 3600
        assert await store.dequeue_rollout("w") is None
        done = await store.get_rollout_by_id(lease.rollout.rollout_id)
        assert done.status is RolloutStatus.FAILED and "timeout" in (done.reason or "")

    async def test_cancelling_a_rollout_ends_its_attempt(self, store: Store) -> None:
        lease = await self.lease(store)
        rollout_id = lease.rollout.rollout_id
        waiter = asyncio.create_task(store.wait_for_rollouts([rollout_id]))
        done = await store.update_rollout(rollout_id, RolloutStatus.CANCELLED, reason="enough")
        assert (done.status, done.reason) == (RolloutStatus.CANCELLED, "enough")
        assert [r.rollout_id for r in await waiter] == [rollout_id]
        with pytest.raises(AttemptEnded):
            await store.add_span(span(lease))
        with pytest.raises(Conflict, match="cancelled to queuing"):
            await store.update_rollout(rollout_id, RolloutStatus.QUEUING)
        with pytest.raises(Conflict):
            await store.start_attempt(rollout_id)

    async def test_update_rollout_merges_metadata_and_sets_config(self, store: Store) -> None:
        made = await store.enqueue_rollout(1, metadata={"a": 1})
        config = RolloutConfig(timeout_seconds=5.0)
        await store.update_rollout(made.rollout_id, metadata={"b": 2}, config=config)
        found = await store.get_rollout_by_id(made.rollout_id)
        assert found.metadata == {"a": 1, "b": 2} and found.config == config

    async def test_start_rollout_leases_past_the_queue(self, store: Store) -> None:
        lease = await store.start_rollout({"x": 1}, worker_id="w")
        assert lease.attempt.sequence_id == 1 and await store.dequeue_rollout() is None

    # -- idempotency

    async def test_a_request_id_is_done_once(self, store: Store) -> None:
        made = [await store.enqueue_rollout(1, request_id="e") for _ in range(2)]
        assert made[0] == made[1] and len(await store.query_rollouts()) == 1
        leases = [await store.dequeue_rollout("w", request_id="d") for _ in range(2)]
        assert leases[0] == leases[1] and leases[0] is not None
        lease = leases[0]
        one = span(lease)
        spans = [await store.add_span(one, request_id="s") for _ in range(2)]
        assert spans[0].sequence_id == spans[1].sequence_id == 1
        for _ in range(2):
            await store.add_calls([call(lease, call_id="c1")])
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        last = [reward(lease, 1.0)]
        ended = [
            await store.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=last, request_id="u")
            for _ in range(2)
        ]
        assert ended[0] == ended[1]
        (record,) = await store.records([ids[0]])
        assert len(record.calls) == len(record.rewards) == 1

    async def test_an_empty_dequeue_is_not_remembered(self, store: Store) -> None:
        assert await store.dequeue_rollout("w", request_id="d") is None
        await store.enqueue_rollout(1)
        assert await store.dequeue_rollout("w", request_id="d") is not None

    async def test_a_request_id_belongs_to_one_method(self, store: Store) -> None:
        await store.enqueue_rollout(1, request_id="x")
        with pytest.raises(Conflict, match="request id"):
            await store.add_resources({"p": "hi"}, request_id="x")

    async def test_a_call_id_names_one_content(self, store: Store) -> None:
        lease = await self.lease(store)
        await store.add_calls([call(lease, call_id="c")])
        with pytest.raises(Conflict, match="other content"):
            await store.add_calls([call(lease, call_id="c", response_ids=[9], logprobs=[-1.0])])

    # -- spans, calls, records

    async def test_calls_come_back_as_they_were(self, store: Store) -> None:
        lease = await self.lease(store)
        given = call(
            lease,
            logprobs=[-0.5, float("-inf")],
            allowed=[[1], [2, 3]],
            asked={"temperature": 0.0},
            sampling={"seed": 2**70},
            response={"role": "assistant", "content": "half a pair: \ud83d"},
            masked="off-policy-sampling",
            logprobs_mode="processed",
            policy_version=4,
        )
        await store.add_calls([call(lease, 1), given])
        found = await store.query_calls(lease.rollout.rollout_id)
        assert found[0] == given and found[1].sequence == 1

    async def test_unknown_attempts_and_rollouts_are_named(self, store: Store) -> None:
        lease = await self.lease(store)
        with pytest.raises(NotFound, match="at-x"):
            await store.update_attempt(lease.rollout.rollout_id, "at-x", AttemptStatus.RUNNING)
        for ask in (store.get_rollout_by_id, store.query_attempts, store.spans, store.query_calls):
            with pytest.raises(NotFound, match="ro-x"):
                await ask("ro-x")
        with pytest.raises(NotFound, match="ro-x"):
            await store.records(["ro-x"])
        with pytest.raises(NotFound, match="ro-x"):
            await store.wait_for_rollouts(["ro-x"], timeout=0)

    async def test_spans_and_status_are_stored_together(self, store: Store) -> None:
        lease = await self.lease(store)
        other = await self.lease(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        with pytest.raises(ValueError, match="belongs to attempt"):
            await store.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=[span(other)])
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=[span(lease), reward(lease, 0.5)])
        assert [s.sequence_id for s in await store.spans(ids[0])] == [1, 2]

    async def test_records_hold_the_latest_attempt(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=2, retry_condition=[AttemptStatus.FAILED])
        lease = await self.lease(store, config=config)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.add_calls([call(lease)])
        await store.update_attempt(*ids, AttemptStatus.FAILED, spans=[reward(lease, -1.0)])
        second = await store.dequeue_rollout("w")
        assert second is not None
        calls = [call(second, 1), call(second, 0)]
        await store.add_calls(calls)
        wire = span(second, semconv.CALL_SPAN, attributes={semconv.LAYER: "wire"}, span_id="ab")
        rewards = [
            reward(second, 1, **{"why": "right"}),
            reward(second, math.nan, **{semconv.REWARD_AGENT: "solver", semconv.REWARD_NAME: "style"}),
            reward(second, "none"),
        ]
        await store.update_attempt(
            ids[0], second.attempt.attempt_id, AttemptStatus.SUCCEEDED, spans=[wire, span(second), *rewards]
        )
        assert len(await store.spans(ids[0], None)) == len(await store.spans(ids[0])) + 1
        assert [c.attempt_id for c in await store.query_calls(ids[0], ids[1])] == [ids[1]]
        waiting = await store.enqueue_rollout(5)
        blank, record = await store.records([waiting.rollout_id, ids[0]])
        assert (blank.attempt, blank.calls, blank.rewards) == (None, [], [])
        assert record.attempt is not None and record.attempt.attempt_id == second.attempt.attempt_id
        assert record.calls == [calls[1], calls[0]]
        assert [s.span_id for s in record.wire] == ["ab"]
        right, style, broken = record.rewards
        assert (right.value, right.final, right.attributes) == (1.0, True, {"why": "right"})
        assert math.isnan(style.value) and (style.agent, style.name, style.final) == (
            "solver",
            "style",
            False,
        )
        assert math.isnan(broken.value) and broken.attributes[semconv.REWARD_VALUE] == "none"

    async def test_records_of_many_rollouts(self, store: Store) -> None:
        made = await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(1203)])
        ids = [r.rollout_id for r in reversed(made)]
        assert [r.rollout.input for r in await store.records(ids)] == list(range(1202, -1, -1))
        assert await store.records([]) == []

    # -- queries

    async def test_rollouts_are_filtered_and_paged(self, store: Store) -> None:
        for i in range(6):
            await store.enqueue_rollout(
                i, run_id="r", mode="train" if i % 2 else "val", group_id=f"g{i // 3}"
            )
        await store.enqueue_rollout("x", run_id="other")
        page = await store.query_rollouts(run_id="r", limit=4)
        rest = await store.query_rollouts(run_id="r", limit=4, after=page[-1].rollout_id)
        assert [r.input for r in page + rest] == list(range(6))
        assert [r.input for r in await store.query_rollouts(mode="val")] == [0, 2, 4]
        assert [r.input for r in await store.query_rollouts(group_id="g1")] == [3, 4, 5]
        ids = [page[2].rollout_id, page[0].rollout_id]
        assert {r.rollout_id for r in await store.query_rollouts(rollout_ids=ids)} == set(ids)
        waiting = await store.query_rollouts(rollout_ids=ids, status=[RolloutStatus.QUEUING], mode="train")
        assert [r.rollout_id for r in waiting] == []
        waiting = await store.query_rollouts(rollout_ids=ids, status=[RolloutStatus.QUEUING], mode="val")
        assert {r.rollout_id for r in waiting} == set(ids)
        assert await store.query_rollouts(status=[RolloutStatus.RUNNING]) == []
        with pytest.raises(NotFound):
            await store.query_rollouts(after="ro-x")

    async def test_waiting_ends_with_the_time_or_the_last_rollout(self, store: Store) -> None:
        first, second = await self.lease(store), await self.lease(store)
        ids = [first.rollout.rollout_id, second.rollout.rollout_id]
        assert await store.wait_for_rollouts(ids, timeout=0) == []
        waiter = asyncio.create_task(store.wait_for_rollouts(ids))
        for lease in (second, first):
            await store.update_attempt(
                lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED
            )
        assert [r.rollout_id for r in await waiter] == ids

    # -- resources, runs, counts, workers

    async def test_resources_are_versioned(self, store: Store) -> None:
        assert await store.get_latest_resources() is None
        llm = LLM(endpoint="http://localhost/v1", model="m", api_key="k")
        first = await store.add_resources({"main": llm, "prompt": "Hello {name}", "n": {"a": [1]}})
        assert first.resources_id.startswith("rs-") and first.version == 1
        assert first.resources["prompt"] == PromptTemplate(template="Hello {name}")
        assert first.resources["n"] == JsonResource(value={"a": [1]})
        found = await store.get_resources_by_id(first.resources_id)
        assert found == first and found.resources["main"] == llm
        second = await store.update_resources(
            first.resources_id, {"prompt": {"resource_type": "prompt_template", "template": "Hi"}}
        )
        assert (second.version, second.resources["prompt"]) == (2, PromptTemplate(template="Hi"))
        assert await store.get_latest_resources() == second
        assert [r.version for r in await store.query_resources()] == [2]
        with pytest.raises(NotFound):
            await store.update_resources("rs-x", {})
        with pytest.raises(ValueError, match="endpoint"):
            await store.add_resources({"m": {"resource_type": "llm", "model": "m"}})

    async def test_runs_and_steps(self, store: Store) -> None:
        await store.add_run("r", {"recipe": "grpo"})
        await store.add_run("r", {"recipe": "grpo"})
        with pytest.raises(Conflict):
            await store.add_run("r", {"recipe": "rloo"})
        await store.update_run("r", {"state": "done"})
        with pytest.raises(NotFound):
            await store.update_run("x", {})
        (run,) = await store.query_runs()
        assert (run["run_id"], run["recipe"], run["state"]) == ("r", "grpo", "done")
        for loss in (1.0, 0.5):
            report = StepReport(run_id="r", step=0, policy="p", policy_version=1, metrics={"loss": loss})
            await store.add_step(report)
        assert await store.query_steps("r") == [report]

    async def test_links_are_only_ever_added(self, store: Store) -> None:
        def link(number: int, **fields: Any) -> AuditLink:
            return AuditLink(run_id="r", number=number, kind="step", name="0/p", **fields)

        body = {"metrics": {"loss": float("inf"), "n": 3}, "text": "ä"}
        await store.add_link(link(0, body=body, head="a"))
        for _ in range(2):
            await store.add_link(
                link(1, fingerprints=[RolloutFingerprint(run_id="r", step=-1, rollout_id="ro-1")]),
                request_id="x",
            )
        report = StepReport(run_id="r", step=0, policy="p", policy_version=1)
        for number in (0, 1, 3):  # there already, and one that leaves a gap
            with pytest.raises(Conflict, match="the next one is 2"):
                await store.add_link(link(number))
            with pytest.raises(Conflict):
                await store.add_step(report, link=link(number))
        assert await store.query_steps("r") == []  # a step and its link, or neither
        await store.add_step(report, link=link(2))
        with pytest.raises(ValueError, match="of run r, the step of run other"):
            await store.add_step(msgspec.structs.replace(report, run_id="other"), link=link(3))
        found = await store.query_links("r")
        assert [one.number for one in found] == [0, 1, 2] and found[0].body == body
        assert found[1].fingerprints[0].rollout_id == "ro-1" and await store.query_links("other") == []

    async def test_counts_add_up(self, store: Store) -> None:
        await store.count("dropped", "stale", rollout_id="ro-1", n=2)
        await store.count("dropped", "stale", rollout_id="ro-2")
        await store.count("dropped", "no-ids")
        assert await store.counts() == {"dropped": {"stale": 3, "no-ids": 1}}
        assert await store.counts("ro-1") == {"dropped": {"stale": 2}}
        with pytest.raises(ValueError, match="at least 0"):
            await store.count("dropped", "stale", n=-1)
