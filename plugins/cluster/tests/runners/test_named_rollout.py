"""A runner that was started for one rollout: it runs this one if it is in the queue, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import RolloutStatus
from agl_cluster.runners.service import serve_rollout


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def half(task: float) -> float:
    return task / 2


async def test_it_runs_the_rollout_that_was_named_and_leaves_the_others(store: Store) -> None:
    first, second = [await store.enqueue_rollout(task) for task in (1, 2)]
    runner = Runner(half, store, RunnerSection(), worker_id="pod-2")
    await serve_rollout(runner, second.rollout_id)
    assert (await store.get_rollout_by_id(second.rollout_id)).status is RolloutStatus.SUCCEEDED
    assert (await store.get_rollout_by_id(first.rollout_id)).status is RolloutStatus.QUEUING
    attempt = await store.get_latest_attempt(second.rollout_id)
    assert attempt is not None and attempt.worker_id == "pod-2"
    assert runner.counts == {"succeeded": 1}


async def test_a_rollout_that_is_leased_or_has_ended_is_left_alone(store: Store) -> None:
    made = await store.enqueue_rollout(1)
    lease = await store.dequeue_rollout("another")
    assert lease is not None
    runner = Runner(half, store, RunnerSection())
    await serve_rollout(runner, made.rollout_id)
    await store.update_rollout(made.rollout_id, RolloutStatus.CANCELLED)
    await serve_rollout(runner, made.rollout_id)
    assert runner.counts == {"not-queued": 2}
    attempts = await store.query_attempts(made.rollout_id)
    assert [one.worker_id for one in attempts] == ["another"]


async def test_a_stop_lets_it_end_and_then_stops_it(store: Store) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang(task: float) -> float:
        loop.call_soon_threadsafe(began.set)
        await asyncio.sleep(3600)
        return 0.0

    made = await store.enqueue_rollout(1)
    runner, stop = Runner(hang, store, RunnerSection(), drain=0.0), asyncio.Event()
    serving = asyncio.create_task(serve_rollout(runner, made.rollout_id, stop))
    await asyncio.wait_for(began.wait(), 300)
    stop.set()
    await asyncio.wait_for(serving, 300)
    attempt = await store.get_latest_attempt(made.rollout_id)
    assert attempt is not None
    assert attempt.reason == "cancelled: the attempt was stopped from outside"
