"""Overdue attempts end by themselves, whoever waits; also those of a process that died."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from contract.store import Clock

from agentlightning.store.base import StoreError
from agentlightning.store.sql import expiry
from agentlightning.store.sql.core import Tables
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, RolloutConfig, RolloutStatus

RETRY = RolloutConfig(unresponsive_seconds=0.05, max_attempts=2, retry_condition=[AttemptStatus.UNRESPONSIVE])


async def test_a_waiting_worker_gets_the_rollout_of_one_that_fell_silent(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    await store.enqueue_rollout(1, config=RETRY)
    first = await store.dequeue_rollout("dies")
    second = await store.dequeue_rollout("waits", wait=30.0)
    assert first is not None and second is not None
    assert second.rollout.rollout_id == first.rollout.rollout_id and second.attempt.sequence_id == 2
    (done,) = await store.wait_for_rollouts([second.rollout.rollout_id], timeout=300.0)
    assert done.status is RolloutStatus.FAILED and "sign of life" in (done.reason or "")
    await store.close()


@pytest.mark.slow
async def test_attempts_of_a_process_that_died_end_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    lease = await store.start_rollout(1, config=RolloutConfig(timeout_seconds=1.0, unresponsive_seconds=None))
    await store.close()
    clock.now += 3600
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    assert await store.expire() == 0  # its worker may have lived meanwhile: it has its time again
    clock.now += 60
    (done,) = await store.wait_for_rollouts([lease.rollout.rollout_id], timeout=300.0)
    assert done.status is RolloutStatus.FAILED and "timeout_seconds" in (done.reason or "")
    await store.close()


async def test_polls_of_an_empty_queue_search_the_live_attempts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    await store.start_rollout(1, config=RolloutConfig(unresponsive_seconds=3600.0))
    searches, search = [], store.db.all

    def count(source: Any, **values: Any) -> list[tuple[Any, ...]]:
        searches.append(source)
        return search(source, **values)

    monkeypatch.setattr(store.db, "all", count)
    for _ in range(5):
        assert await store.dequeue_rollout() is None
    assert searches.count(expiry._OVERDUE) == 1
    await store.close()


async def test_signs_of_life_put_the_end_off(tmp_path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    lease = await store.start_rollout(1, config=RolloutConfig(unresponsive_seconds=30.0, max_attempts=1))
    for _ in range(5):
        clock.now += 25
        assert await store.expire() == 0
        await store.heartbeat("w", [lease.attempt.attempt_id])
    assert await store.expire(clock.now + 31) == 1
    await store.close()


async def test_a_limit_that_is_set_later_holds(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    lease = await store.start_rollout(1, config=RolloutConfig(timeout_seconds=3600.0))
    limited = RolloutConfig(unresponsive_seconds=0.05, max_attempts=1)
    await store.update_rollout(lease.rollout.rollout_id, config=limited)
    (done,) = await store.wait_for_rollouts([lease.rollout.rollout_id], timeout=300.0)
    assert done.status is RolloutStatus.FAILED and "sign of life" in (done.reason or "")
    await store.close()


async def test_a_look_that_fails_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentlightning.store.sql.expiry._RETRY_SECONDS", 0.0)
    store = SQLiteStore(tmp_path / "s.sqlite")
    work, tries = expiry.end_overdue, iter([StoreError("disk full"), None])

    def failing(store: Tables, now: float) -> int:
        if error := next(tries, None):
            raise error
        return work(store, now)

    monkeypatch.setattr(expiry, "end_overdue", failing)
    lease = await store.start_rollout(1, config=RolloutConfig(unresponsive_seconds=0.05, max_attempts=1))
    (done,) = await store.wait_for_rollouts([lease.rollout.rollout_id], timeout=300.0)
    assert done.status is RolloutStatus.FAILED and "disk full" in caplog.text
    await store.close()


async def test_closing_lets_everybody_who_waits_return(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    made = await store.enqueue_rollout(1, run_id="a")
    waiting = asyncio.create_task(store.wait_for_rollouts([made.rollout_id]))
    idle = asyncio.create_task(store.dequeue_rollout(run_id="b", wait=60.0))
    for _ in range(5):
        await store.counts()
    store.waiters.wake_all()
    assert await waiting == [] and await idle is None
    await store.close()
