"""A stall of the trainer's event loop costs no attempt, wherever runner and store are; the dead are found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contract.running import serving

from agentlightning.store import SQLiteStore
from agentlightning.store.sql import waiting
from agentlightning.types import AttemptStatus, Rollout, RolloutConfig, RolloutStatus

SILENCE = 0.6
STALL = 5 * SILENCE
"""Seconds that the loop is blocked: several times the silence that ends an attempt."""
ATTEMPTS = 8
CONFIG = RolloutConfig(
    unresponsive_seconds=SILENCE, max_attempts=2, retry_condition=[AttemptStatus.UNRESPONSIVE]
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "s.sqlite")
    yield opened
    await opened.close()


async def enqueue(store: Any, seconds: float) -> list[Rollout]:
    return [await store.enqueue_rollout(seconds, config=CONFIG) for _ in range(ATTEMPTS)]


async def running(store: Any, rollouts: list[Rollout]) -> None:
    ids = [rollout.rollout_id for rollout in rollouts]
    while any(r.status is not RolloutStatus.RUNNING for r in await store.query_rollouts(rollout_ids=ids)):
        await asyncio.sleep(0.02)


async def sleeps(task: float) -> float:
    await asyncio.sleep(task)
    return 1.0


async def survivors(store: Any, rollouts: list[Rollout]) -> int:
    """Rollouts that succeeded at their first attempt."""
    done = await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts], timeout=300)
    return sum(r.status is RolloutStatus.SUCCEEDED and r.attempts == 1 for r in done)


@pytest.mark.slow
async def test_a_stall_of_the_loop_of_runner_and_store_costs_no_attempt(store: SQLiteStore) -> None:
    rollouts = await enqueue(store, STALL + 2 * SILENCE)
    async with serving(sleeps, store, heartbeat=0.1):
        await running(store, rollouts)
        time.sleep(STALL)
        assert await survivors(store, rollouts) == ATTEMPTS


@pytest.mark.slow
async def test_a_dead_runner_is_found_although_the_store_stands_still_again_and_again(
    store: SQLiteStore,
) -> None:
    """A stall puts the end off by its own length; it does not begin the silence anew."""
    lease = await store.start_rollout(1, config=CONFIG)
    for _ in range(40):
        time.sleep(2 * SILENCE)
        await asyncio.sleep(2 * waiting.TICK_SECONDS)
        (attempt,) = (await store.query_attempts(lease.rollout.rollout_id))[:1]
        if attempt.status is AttemptStatus.UNRESPONSIVE:
            break
    assert attempt.status is AttemptStatus.UNRESPONSIVE
    assert len(store.watch.stalls) <= 40
