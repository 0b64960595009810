"""Stalls of the store's loop: noted with their length, once each, and forgotten."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from contract.store import Clock

from agentlightning.store.sql import waiting
from agentlightning.store.sql.waiting import LoopWatch
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import RolloutConfig

BLOCK = 6 * waiting.TICK_SECONDS


async def test_a_stall_is_noted_with_its_length() -> None:
    watch = LoopWatch(time.time, lambda: True)
    watch.start()
    began = time.time()
    time.sleep(BLOCK)
    watch.look()
    watch.look()
    assert len(watch.stalls) == 1
    assert BLOCK - 2 * waiting.TICK_SECONDS < watch.slept(began - 1.0) <= time.time() - began
    assert watch.slept(time.time()) == 0.0
    watch.forget(before=time.time())
    assert watch.stalls == [] and watch.slept(0.0) == 0.0
    watch.stop()


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 0.0])
async def test_a_clock_that_is_set_is_no_stall(jump: float) -> None:
    clock = Clock()
    watch = LoopWatch(clock, lambda: True)
    watch.start()
    clock.now += jump
    watch.look()
    assert watch.stalls == []
    watch.stop()


@pytest.mark.slow
async def test_time_between_two_event_loops_was_slept() -> None:
    watch = LoopWatch(time.time, lambda: True)

    async def use() -> None:
        watch.start()

    def in_another_loop() -> None:
        asyncio.run(use())

    await asyncio.to_thread(in_another_loop)
    time.sleep(BLOCK)
    await asyncio.to_thread(in_another_loop)
    assert len(watch.stalls) == 1


def test_old_stalls_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("agentlightning.store.sql.waiting.time.monotonic", clock)
    watch, begun = LoopWatch(clock, lambda: True), clock.now
    watch._seen = (clock.now, clock.now)
    for _ in range(2 * waiting._MAX_STALLS):
        clock.now += 1.0
        watch.look()
    each = 1.0 - waiting.TICK_SECONDS
    assert len(watch.stalls) == waiting._MAX_STALLS
    assert watch.slept(begun) == pytest.approx(2 * waiting._MAX_STALLS * each)
    assert watch.slept(clock.now - 10.0) == pytest.approx(10 * each)


async def test_nothing_ticks_without_a_lease(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    assert store.watch._handle is None
    lease = await store.start_rollout(1, config=RolloutConfig(unresponsive_seconds=0.3, max_attempts=1))
    assert store.watch._handle is not None
    await store.wait_for_rollouts([lease.rollout.rollout_id], timeout=300.0)
    while store.watch._handle is not None:
        await asyncio.sleep(waiting.TICK_SECONDS)
    await store.close()
