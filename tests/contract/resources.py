"""What a rollout is given is settled when it is made: every store pins the version of its resources."""

from __future__ import annotations

import pytest

from agentlightning.store.base import Conflict, NotFound, Store
from agentlightning.types import AttemptStatus, PromptTemplate, Rollout

Pin = tuple[str | None, int | None]


def pin_of(record: object) -> Pin:
    """The resources of a rollout or an attempt, with their version."""
    return record.resources_id, record.resources_version  # type: ignore[attr-defined]


class PinContract:
    """Resources of rollouts."""

    async def test_a_rollout_keeps_the_resources_that_were_the_latest_when_it_was_queued(
        self, store: Store
    ) -> None:
        a = await store.add_resources({"prompt": "A"})
        first = await store.enqueue_rollout(1)
        b = await store.add_resources({"prompt": "B"})
        second = await store.enqueue_rollout(2)
        await store.update_resources(a.resources_id, {"prompt": "A, changed"})
        third, named = await store.enqueue_many_rollouts(
            [Rollout(rollout_id="", input=3), Rollout(rollout_id="", input=4, resources_id=b.resources_id)]
        )
        pins = [(a.resources_id, 1), (b.resources_id, 1), (a.resources_id, 2), (b.resources_id, 1)]
        assert [pin_of(r) for r in (first, second, third, named)] == pins
        leases = await store.dequeue_many_rollouts("w", limit=4)
        assert [pin_of(lease.rollout) for lease in leases] == pins
        assert [pin_of(lease.attempt) for lease in leases] == pins
        for lease, pin in zip(leases, pins, strict=True):
            (attempt,) = await store.query_attempts(lease.rollout.rollout_id)
            assert pin_of(attempt) == pin_of(await store.get_rollout_by_id(attempt.rollout_id)) == pin
        given = [await store.get_resources_by_id(*pin) for pin in pins]
        assert [r.resources["prompt"] for r in given] == [
            PromptTemplate(template=text) for text in ("A", "B", "A, changed", "B")
        ]

    async def test_named_resources_are_pinned_in_their_newest_version(self, store: Store) -> None:
        a = await store.add_resources({"prompt": "A"})
        made = await store.enqueue_rollout(1, resources_id=a.resources_id)
        await store.update_resources(a.resources_id, {"prompt": "B"})
        older = Rollout(rollout_id="", input=2, resources_id=a.resources_id, resources_version=1)
        (named,) = await store.enqueue_many_rollouts([older])
        assert pin_of(made) == pin_of(named) == (a.resources_id, 1)
        with pytest.raises(NotFound, match="version 7"):
            await store.get_resources_by_id(a.resources_id, 7)
        older.resources_version = 7
        with pytest.raises(NotFound, match="version 7"):
            await store.enqueue_many_rollouts([older])

    async def test_a_requeued_rollout_keeps_its_resources(self, store: Store) -> None:
        a = await store.add_resources({"prompt": "A"})
        made = await store.enqueue_rollout(1)
        await store.dequeue_rollout("w")
        await store.add_resources({"prompt": "B"})
        await store.requeue_rollouts([made.rollout_id], reason="again")
        lease = await store.dequeue_rollout("w")
        assert lease is not None
        assert pin_of(lease.rollout) == pin_of(lease.attempt) == (a.resources_id, 1)
        await store.update_attempt(made.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
        (record,) = await store.records([made.rollout_id])
        assert record.attempt is not None
        assert pin_of(record.rollout) == pin_of(record.attempt) == (a.resources_id, 1)

    async def test_a_rollout_that_is_started_at_once_is_pinned_too(self, store: Store) -> None:
        a = await store.add_resources({"prompt": "A"})
        lease = await store.start_rollout(1)
        assert pin_of(lease.rollout) == pin_of(lease.attempt) == (a.resources_id, 1)

    async def test_resources_that_came_after_the_rollout_are_pinned_by_its_first_lease(
        self, store: Store
    ) -> None:
        made = await store.enqueue_rollout(1)
        assert pin_of(made) == (None, None)
        a = await store.add_resources({"prompt": "A"})
        first = await store.dequeue_rollout("w")
        await store.add_resources({"prompt": "B"})
        await store.requeue_rollouts([made.rollout_id], reason="again")
        second = await store.dequeue_rollout("w")
        assert first is not None and second is not None
        assert pin_of(first.attempt) == pin_of(second.attempt) == (a.resources_id, 1)

    async def test_a_rollout_that_is_queued_again_under_its_id_is_the_same(self, store: Store) -> None:
        a = await store.add_resources({"prompt": "A"})
        made = await store.enqueue_rollout(1, rollout_id="ro-1")
        b = await store.add_resources({"prompt": "B"})
        assert await store.enqueue_rollout(1, rollout_id="ro-1") == made
        assert await store.enqueue_rollout(1, resources_id=a.resources_id, rollout_id="ro-1") == made
        with pytest.raises(Conflict, match="another resources_id"):
            await store.enqueue_rollout(1, resources_id=b.resources_id, rollout_id="ro-1")
