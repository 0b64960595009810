"""The steps to come on a real store: what is queued when, what an earlier life left, and how it all ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentlightning.algorithms.queue import (
    ENDED,
    RESUMED,
    Prefetcher,
    RunEnded,
    TaskGroups,
    cancel_leftovers,
)
from agentlightning.algorithms.tasks import group_rollouts
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import Rollout, RolloutStatus

SIZE = 3
"""Rollouts of a step."""


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def make(step: int) -> TaskGroups:
    options: dict[str, Any] = {"run_id": "r", "seed": 1, "mode": "train", "resources_id": None}
    return [group_rollouts([f"task {step}"], SIZE, name=f"train/{step}", **options)]


def upcoming(store: Store, **options: Any) -> Prefetcher:
    return Prefetcher(store, make, **{"steps": 4, "async_steps": 1, **options})


async def queued(store: Store) -> list[Any]:
    """The tasks in the order in which workers get them."""
    found = await store.query_rollouts(run_id="r")
    return [r.input for r in found if r.status in (RolloutStatus.QUEUING, RolloutStatus.REQUEUING)][::SIZE]


async def finish(store: Store, count: int = SIZE) -> list[Rollout]:
    """Roll out the next ``count`` in the queue."""
    leases = await store.dequeue_many_rollouts("w", count)
    for lease in leases:
        await store.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, "succeeded")  # type: ignore[arg-type]
    return [lease.rollout for lease in leases]


@pytest.mark.parametrize(
    ("ahead", "seen"),
    [
        (0, [[0], [1], [2], [3]]),
        (1, [[0, 1], [1, 2], [2, 3], [3]]),
        (2, [[0, 1, 2], [1, 2, 3], [2, 3], [3]]),
        (9, [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]),
    ],
)
async def test_so_many_steps_are_queued_and_nothing_beyond_the_last(
    store: Store, ahead: int, seen: list[list[int]]
) -> None:
    work = upcoming(store, async_steps=ahead)
    for step, expected in enumerate(seen):
        groups = await work.take(step)
        assert groups == make(step)
        assert await queued(store) == [f"task {n}" for n in expected]
        done = await finish(store)
        assert [r.rollout_id for r in done] == [r.rollout_id for r in groups[0]]
        work.finish(step)
    assert await work.end() == 0


async def test_how_far_a_step_has_come_before_its_turn(store: Store) -> None:
    work = upcoming(store)
    assert await work.progress(0) == {"async/started": 0, "async/ended": 0}
    await work.take(0)
    await finish(store, SIZE + 1)
    await store.dequeue_many_rollouts("w", 1)
    work.finish(0)
    assert await work.progress(1) == {"async/started": 2, "async/ended": 1}
    assert await upcoming(store, async_steps=0).progress(1) == {}


async def test_the_end_cancels_what_is_under_way_and_counts_it(store: Store) -> None:
    work = upcoming(store)
    await work.take(0)
    await finish(store)
    work.finish(0)
    await finish(store, 1)
    await store.dequeue_many_rollouts("w", 1)
    extra = make(7)
    await work.take(1)
    await work.add(1, extra)
    assert await work.end() == 2 + SIZE + SIZE  # of step 1: one runs, one waits; further ones; and step 2
    assert await work.end() == 0
    found = await store.query_rollouts(run_id="r")
    ended = [r for r in found if r.status == RolloutStatus.CANCELLED]
    assert {r.reason for r in ended} == {ENDED} and len(ended) == 8
    assert all(r.status.final for r in found)
    assert await store.dequeue_many_rollouts("w", 9) == []


async def test_a_store_that_is_gone_is_said_and_hides_nothing(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    work = upcoming(store)
    await work.take(0)
    monkeypatch.setattr(store, "query_rollouts", never)
    monkeypatch.setattr("agentlightning.algorithms.queue.PATIENCE", 0.01)
    with caplog.at_level(logging.WARNING):
        assert await work.end() == 0
    assert "6 rollouts of a run that ends were not cancelled in its store: TimeoutError" in caplog.text


async def test_what_an_earlier_life_began_is_made_again_in_its_turn_and_not_before(store: Store) -> None:
    first = upcoming(store, async_steps=2)
    await first.take(0)
    await finish(store)
    first.finish(0)
    await first.take(1)
    await finish(store, 2 * SIZE - 1)  # step 1, and of step 2 all but one
    await store.dequeue_many_rollouts("w", 1)  # that one is with a worker, and step 3 waits
    # killed: nothing was cancelled, and the last checkpoint is that of no step
    assert await cancel_leftovers(store, "r") == 1 + SIZE
    assert await queued(store) == [], "there is nothing that a worker could take before it is queued again"
    second = upcoming(store, async_steps=1)
    await second.take(0)
    assert await queued(store) == ["task 0", "task 1"]
    late = await store.query_rollouts(rollout_ids=[r.rollout_id for s in (2, 3) for r in make(s)[0]])
    assert [r.status for r in late] == [RolloutStatus.SUCCEEDED] * 2 + [RolloutStatus.CANCELLED] * 4
    assert {r.reason for r in late[2:]} == {RESUMED}
    for step in range(4):
        groups = await second.take(step)
        done = await finish(store)
        assert [r.rollout_id for r in done] == [r.rollout_id for r in groups[0]]
        second.finish(step)
    attempts = {r.input: r.attempts for r in await store.query_rollouts(run_id="r")}
    assert attempts == {"task 0": 2, "task 1": 2, "task 2": 2, "task 3": 1}
    assert await second.end() == 0


async def test_rollouts_of_others_are_left_alone(store: Store) -> None:
    options: dict[str, Any] = {"seed": 1, "resources_id": None}
    held_out = group_rollouts(["v"], 1, name="eval", run_id="r", mode="val", **options)
    other = group_rollouts(["o"], 1, name="train/3", run_id="other", mode="train", **options)
    await store.enqueue_many_rollouts([*held_out, *other])
    own = await store.enqueue_rollout("of the user's own algorithm", run_id="r")
    work = upcoming(store)
    await work.take(0)
    assert await work.end() == 2 * SIZE
    left = await store.query_rollouts(rollout_ids=[r.rollout_id for r in [*held_out, *other, own]])
    assert {r.status for r in left} == {RolloutStatus.QUEUING}
    # a run that goes on leaves behind its steps and evaluations
    assert await cancel_leftovers(store, "r") == 1
    left = await store.query_rollouts(rollout_ids=[r.rollout_id for r in [*held_out, *other, own]])
    assert [r.status for r in left] == ["cancelled", "queuing", "queuing"]


async def test_a_turn_that_is_cancelled_half_way_leaves_nothing_queued(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue, stands = store.enqueue_many_rollouts, asyncio.Event()

    async def slow(rollouts: list[Rollout], **options: Any) -> list[Rollout]:
        found = await enqueue(rollouts, **options)
        if rollouts[0].input == "task 1":
            stands.set()
            await asyncio.Event().wait()
        return found

    monkeypatch.setattr(store, "enqueue_many_rollouts", slow)
    work = upcoming(store)
    turn = asyncio.create_task(work.take(0))
    await stands.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert await work.end() == 2 * SIZE


async def test_a_step_that_is_waited_for_elsewhere_is_not_made_of_what_is_left(store: Store) -> None:
    """A driver whose child asks: that question goes on a little longer than the run."""
    work = upcoming(store)
    groups = await work.take(0)
    waiting = asyncio.create_task(store.wait_for_rollouts([r.rollout_id for r in groups[0]]))
    await finish(store, 1)
    assert await work.end() == 2 * SIZE - 1
    assert {r.status for r in await waiting} == {"succeeded", "cancelled"}
    for ask in (work.take, lambda step: work.add(step, make(9))):
        with pytest.raises(RunEnded, match="no step is made of them"):
            await ask(0)
    with pytest.raises(RunEnded):
        work.finish(0)
    assert len(await store.query_rollouts()) == 2 * SIZE


async def test_what_is_being_queued_when_the_run_ends_is_cancelled_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue, stands, on = store.enqueue_many_rollouts, asyncio.Event(), asyncio.Event()

    async def slow(rollouts: list[Rollout], **options: Any) -> list[Rollout]:
        stands.set()
        await on.wait()
        return await enqueue(rollouts, **options)

    monkeypatch.setattr(store, "enqueue_many_rollouts", slow)
    work = upcoming(store)
    turn = asyncio.create_task(work.take(0))
    await stands.wait()
    assert await work.end() == 0
    on.set()
    with pytest.raises(RunEnded):
        await turn
    assert [r.status for r in await store.query_rollouts()] == ["cancelled"] * SIZE
