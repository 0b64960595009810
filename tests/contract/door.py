"""What no writer gets into a store: records that a reader cannot rely on, whoever hands them over and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from contract.storing import call, reward, span

from agentlightning import semconv
from agentlightning.credit import assign, resolve
from agentlightning.recipes import GRPO
from agentlightning.store.base import Store, StoreError
from agentlightning.types import AttemptedRollout, AttemptStatus, Rollout, RolloutConfig, Span

Bad = Callable[[AttemptedRollout], Span]
BAD: dict[str, Bad] = {
    "two agents": lambda lease: reward(lease, 1.0, **{semconv.REWARD_AGENT: ["writer", "critic"]}),
    "a call that is a mapping": lambda lease: reward(lease, 1.0, **{semconv.REWARD_CALL: {"id": 1}}),
    "a name that is a number": lambda lease: reward(lease, 1.0, **{semconv.REWARD_NAME: 7}),
    "a reward beyond numbers": lambda lease: reward(lease, 1e308),
    "a choice that is a text": lambda lease: span(
        lease, attributes={semconv.LAYER: "wire", semconv.CHOICE: "first"}
    ),
    "a digest that is a list": lambda lease: span(
        lease, attributes={semconv.LAYER: "wire", semconv.TOKENS_DIGEST: [1]}
    ),
    "a name without an end": lambda lease: span(lease, "x" * 100_000),
    "a time before all": lambda lease: span(lease, start_time=-1e300),
}
Write = Callable[[Store, AttemptedRollout, Span], Awaitable[object]]


def _end(store: Store, lease: AttemptedRollout, **given: Any) -> Awaitable[object]:
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    return store.update_attempt(*ids, AttemptStatus.SUCCEEDED, **given)


WRITERS: dict[str, Write] = {
    "add_span": lambda store, lease, one: store.add_span(one),
    "add_many_spans": lambda store, lease, one: store.add_many_spans([one]),
    "the attempt's spans": lambda store, lease, one: _end(store, lease, spans=[one]),
    "the returned rewards": lambda store, lease, one: _end(store, lease, returned=[one]),
}


class DoorContract:
    """One validation for every writer."""

    @pytest.mark.parametrize("writer", WRITERS)
    @pytest.mark.parametrize("bad", BAD)
    async def test_a_bad_span_is_kept_as_what_it_is_and_harms_nobody(
        self, store: Store, writer: str, bad: str
    ) -> None:
        lease = await store.start_rollout({"q": 1})
        await store.add_calls([call(lease)])
        await store.add_span(reward(lease, 0.5))
        await WRITERS[writer](store, lease, BAD[bad](lease))
        kept = (await store.spans(lease.rollout.rollout_id))[-1]
        assert (kept.name, kept.status, kept.returned) == (semconv.BAD_RECORD_SPAN, "error", False)
        assert kept.attributes[semconv.BAD_RECORD_REASON]
        assert (await store.counts(lease.rollout.rollout_id))["refused"] == {"bad-record": 1}
        if not writer.startswith("the"):
            await _end(store, lease)
        (record,) = await store.records([lease.rollout.rollout_id])
        assert resolve(record).final == 0.5 and len(record.rewards) == 1
        assert assign([record], GRPO(credit="per_agent")).metrics["reward_mean"] == 0.5

    @pytest.mark.parametrize(
        "fields",
        [
            {"metadata": "x"},
            {"metadata": [1]},
            {"group_id": 5},
            {"task_id": ["a"]},
            {"sample": "first"},
            {"seed": 1.5},
            {"config": RolloutConfig(retry_on="timeout")},  # type: ignore[arg-type]
            {"config": RolloutConfig(trusted=None)},  # type: ignore[arg-type]
        ],
    )
    async def test_a_task_that_no_worker_could_lease_is_refused_and_named(
        self, store: Store, fields: dict[str, Any]
    ) -> None:
        (name,) = fields
        with pytest.raises((ValueError, StoreError), match=name):
            await store.enqueue_rollout("bad", **fields)
        with pytest.raises((ValueError, StoreError), match=name):
            await store.enqueue_many_rollouts([Rollout(rollout_id="", input="bad", **fields)])
        assert await store.query_rollouts() == []
        await store.enqueue_rollout("good")
        (lease,) = await store.dequeue_many_rollouts("w", 4)
        assert lease.rollout.input == "good"

    @pytest.mark.parametrize(
        "metadata",
        [
            {semconv.SUPPLIED: "all of them"},
            {semconv.SUPPLIED: 5},
            {semconv.JUDGED: "yes"},
            {semconv.RESAMPLED: "often"},
        ],
    )
    async def test_entries_that_readers_rely_on_have_their_types(
        self, store: Store, metadata: dict[str, Any]
    ) -> None:
        lease = await store.start_rollout({"q": 1})
        with pytest.raises((ValueError, StoreError), match="metadata"):
            await _end(store, lease, metadata=metadata)
        await _end(store, lease)
        (record,) = await store.records([lease.rollout.rollout_id])
        assert record.rollout.status == "succeeded"
