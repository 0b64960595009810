"""What every store does with long lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.storing import Clock, call, span

from agentlightning.store.base import NotFound, Store
from agentlightning.store.pages import pages
from agentlightning.types import (
    AttemptedRollout,
    AttemptStatus,
    AuditLink,
    Rollout,
    StepReport,
)

DONE = AttemptStatus.SUCCEEDED


async def flat(found: AsyncIterator[list[Any]]) -> list[Any]:
    """All items of all pages, none of which is empty."""
    items: list[Any] = []
    async for page in found:
        assert page
        items += page
    return items


async def leased(store: Store, run_id: str | None = None, **fields: Any) -> AttemptedRollout:
    """A fresh rollout under a lease."""
    made = await store.enqueue_rollout({"q": 1}, run_id=run_id, **fields)
    return await store.start_attempt(made.rollout_id, worker_id="w")


async def finish(store: Store, lease: AttemptedRollout, status: AttemptStatus = DONE) -> None:
    """End an attempt."""
    await store.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, status)


class PagingContract:
    """``limit`` and ``after`` of every query."""

    async def test_rollouts_are_paged_while_more_arrive(self, store: Store) -> None:
        made = await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(7)])
        seen: list[Any] = []
        async for page in pages(store.query_rollouts, size=3, sort_order="desc"):
            seen += [r.input for r in page]
            await store.enqueue_rollout("late")
        assert seen == [6, 5, 4, 3, 2, 1, 0]
        assert [r.input for r in await flat(pages(store.query_rollouts, size=3))][:7] == list(range(7))
        ids = [r.rollout_id for r in made]
        some = await store.query_rollouts(rollout_ids=ids, limit=2, after=ids[3])
        assert [r.input for r in some] == [4, 5]
        tasked = await store.enqueue_rollout(1, task_id="t9")
        assert [r.rollout_id for r in await store.query_rollouts(task_id="t9")] == [tasked.rollout_id]
        with pytest.raises(ValueError, match="sort_order"):
            await store.query_rollouts(sort_order="up")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="limit must be at least 1"):
            await store.query_rollouts(limit=-1)

    async def test_rollouts_by_many_ids_keep_their_order(self, store: Store) -> None:
        made = await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(700)])
        ids = [r.rollout_id for r in reversed(made)]
        found = await store.query_rollouts(rollout_ids=ids, limit=600)
        assert [r.input for r in found] == list(range(600))

    async def test_attempts_calls_and_spans_are_paged(self, store: Store) -> None:
        lease = await leased(store)
        rollout_id = lease.rollout.rollout_id
        for _ in range(4):
            lease = await store.start_attempt(rollout_id)
        attempts = await store.query_attempts(rollout_id)
        assert len(attempts) == 5
        assert await flat(pages(store.query_attempts, rollout_id, size=2)) == attempts
        await store.add_calls([call(lease, i, choice=c) for i in (2, 0, 1) for c in (1, 0)])
        await store.add_many_spans([span(lease, f"s{i}", start_time=float(4 - i)) for i in range(4)])
        for attempt_id in ("latest", None):
            calls = await store.query_calls(rollout_id, attempt_id)
            assert len(calls) == 6
            assert await flat(pages(store.query_calls, rollout_id, attempt_id, size=2)) == calls
            spans = await store.spans(rollout_id, attempt_id)
            assert [s.name for s in spans] == ["s0", "s1", "s2", "s3"]
            assert await flat(pages(store.spans, rollout_id, attempt_id, size=3)) == spans
            named = await flat(pages(store.spans, rollout_id, attempt_id, size=1, name="s2"))
            assert [s.sequence_id for s in named] == [spans[2].sequence_id]
        first = attempts[0].attempt_id
        assert await store.spans(rollout_id, first) == [] == await store.spans(rollout_id, "at-x")
        for method in (store.query_attempts, store.query_calls, store.spans):
            with pytest.raises(NotFound, match="after"):
                await method(rollout_id, after="x/1")

    async def test_runs_steps_links_and_resources_are_paged(self, store: Store, clock: Clock) -> None:
        for i in range(5):
            await store.add_run(f"r{i}", {"i": i})
            clock.now += i % 2
            report = StepReport(run_id="r0", step=i // 2, policy=f"p/{i % 2}", policy_version=i)
            await store.add_step(report)
            await store.add_link(AuditLink(run_id="r0", number=i, kind="step", name=f"{i}"))
            last = await store.add_resources({"n": str(i)})
        for method, args in (
            (store.query_runs, ()),
            (store.query_steps, ("r0",)),
            (store.query_links, ("r0",)),
            (store.query_resources, ()),
        ):
            everything = await method(*args)
            assert len(everything) == 5
            assert await flat(pages(method, *args, size=2)) == everything
            assert await flat(pages(method, *args, size=5)) == everything
            with pytest.raises((NotFound, ValueError), match="after"):
                await method(*args, after="no/such/place")
        page = await store.query_resources(2)
        assert page[0].resources_id == last.resources_id
        oldest = (await store.query_resources())[-1]
        await store.update_resources(oldest.resources_id, {"n": "changed"})
        rest = await store.query_resources(9, after=page[-1].resources_id)
        assert rest[-1].resources_id == oldest.resources_id and rest[-1].version == 2
