"""Which reward counts, and who may write it: what every store keeps to, whatever a sender's clock says."""

from __future__ import annotations

import pytest
from contract.storing import reward

from agentlightning import semconv
from agentlightning.credit.rewards import resolve
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import AttemptedRollout, AttemptStatus, RolloutConfig, Span

FAR = 4_000_000_000.0
"""A time in 2096."""
BESIDE = "reward-beside-the-returned"


def said(lease: AttemptedRollout, value: float, **fields: object) -> Span:
    """A reward of the rollout, or of what ``fields`` (attributes) narrow it to."""
    made = reward(lease, value)
    made.attributes |= {semconv.REWARD_FINAL: not fields} | fields
    return made


class RewardContract:
    """Order and authority of rewards."""

    async def _lease(self, store: Store, config: RolloutConfig | None = None) -> AttemptedRollout:
        return await store.start_rollout({"q": 1}, config=config)

    async def _settle(
        self, store: Store, lease: AttemptedRollout, *returned: Span, spans: tuple[Span, ...] = ()
    ) -> None:
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=spans, returned=returned)

    async def test_rewards_count_in_the_order_in_which_they_arrived(self, store: Store) -> None:
        lease = await self._lease(store)
        for value, time in ((0.1, FAR), (0.2, 5.0), (0.3, 0.0)):
            span = said(lease, value)
            span.start_time = span.end_time = time
            await store.add_span(span)
        await self._settle(store, lease)
        (record,) = await store.records([lease.rollout.rollout_id])
        assert [r.value for r in record.rewards] == [0.1, 0.2, 0.3]
        assert resolve(record).final == 0.3

    async def test_what_the_agent_returned_counts_and_not_what_it_emitted(self, store: Store) -> None:
        lease = await self._lease(store)
        early, late = said(lease, 9.0), said(lease, 7.0)
        early.start_time = early.end_time = late.end_time = FAR
        await store.add_span(early)
        await self._settle(store, lease, said(lease, 1.0), spans=(late,))
        (record,) = await store.records([lease.rollout.rollout_id])
        assert [(r.value, r.returned) for r in record.rewards] == [(9.0, False), (7.0, False), (1.0, True)]
        assert resolve(record).final == 1.0
        assert (await store.counts(lease.rollout.rollout_id))["refused"] == {BESIDE: 2}

    async def test_what_an_agent_without_trust_emits_does_not_count_beside_a_judge(
        self, store: Store
    ) -> None:
        lease = await self._lease(store, RolloutConfig(trusted=False))
        style, writer = said(lease, 0.7), said(lease, 0.5, **{semconv.REWARD_AGENT: "writer"})
        style.attributes[semconv.REWARD_NAME] = "style"
        await store.add_span(style)
        await self._settle(store, lease, said(lease, 0.0), spans=(writer,))
        (record,) = await store.records([lease.rollout.rollout_id])
        found = resolve(record)
        assert (found.final, found.by_name, found.agents) == (0.0, {"reward": 0.0}, {})
        assert found.missing == {"by-agent": 2}
        assert (await store.counts(lease.rollout.rollout_id))["refused"] == {BESIDE: 2}

    async def test_a_judge_that_gave_none_leaves_no_reward(self, store: Store) -> None:
        lease = await self._lease(store, RolloutConfig(trusted=False))
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.add_span(said(lease, 1.0))
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED, metadata={semconv.JUDGED: True})
        (record,) = await store.records([lease.rollout.rollout_id])
        assert (resolve(record).final, resolve(record).missing) == (None, {"by-agent": 1})
        assert (await store.counts(lease.rollout.rollout_id))["refused"] == {BESIDE: 1}

    async def test_without_a_judge_what_the_program_emits_counts(self, store: Store) -> None:
        lease = await self._lease(store, RolloutConfig(trusted=False))
        await store.add_span(said(lease, 0.4))
        await self._settle(store, lease)
        (record,) = await store.records([lease.rollout.rollout_id])
        assert (resolve(record).final, resolve(record).missing) == (0.4, {})

    async def test_emitted_rewards_count_where_nothing_was_returned(self, store: Store) -> None:
        lease = await self._lease(store)
        await store.add_span(said(lease, 0.3))
        await self._settle(store, lease)
        (record,) = await store.records([lease.rollout.rollout_id])
        assert resolve(record).final == 0.3
        assert "refused" not in await store.counts(lease.rollout.rollout_id)

    async def test_rewards_of_something_else_stand_beside_the_returned_one(self, store: Store) -> None:
        lease = await self._lease(store)
        style = said(lease, 0.7)
        style.attributes[semconv.REWARD_NAME] = "style"
        await self._settle(
            store,
            lease,
            said(lease, 1.0),
            spans=(style, said(lease, 0.5, **{semconv.REWARD_AGENT: "judge"})),
        )
        (record,) = await store.records([lease.rollout.rollout_id])
        found = resolve(record)
        assert (found.final, found.by_name, found.agents) == (
            1.0,
            {"style": 0.7, "reward": 1.0},
            {"judge": 0.5},
        )
        assert "refused" not in await store.counts(lease.rollout.rollout_id)

    async def test_nobody_but_the_runner_can_say_that_a_reward_was_returned(self, store: Store) -> None:
        lease = await self._lease(store)
        forged = said(lease, 9.0)
        forged.returned = True
        forged.attributes |= {"returned": True, "agl.returned": True}
        await store.add_many_spans([forged])
        sneaked = said(lease, 8.0)
        sneaked.returned = True
        await self._settle(store, lease, said(lease, 1.0), spans=(sneaked,))
        spans = await store.spans(lease.rollout.rollout_id)
        assert [(s.attributes[semconv.REWARD_VALUE], s.returned) for s in spans] == [
            (9.0, False),
            (8.0, False),
            (1.0, True),
        ]
        (record,) = await store.records([lease.rollout.rollout_id])
        assert resolve(record).final == 1.0

    async def test_no_reward_is_taken_after_the_returned_one(self, store: Store) -> None:
        lease = await self._lease(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.update_attempt(*ids, returned=[said(lease, 1.0)])
        with pytest.raises(AttemptEnded, match="on record already"):
            await store.add_span(said(lease, 9.0))
        assert (await store.counts(ids[0]))["refused"] == {"rewards-after-the-returned": 1}
        await self._settle(store, lease)
        with pytest.raises(AttemptEnded):
            await store.add_span(said(lease, 9.0))
        (record,) = await store.records([ids[0]])
        assert [r.value for r in record.rewards] == [1.0]
