"""Leases and timeouts do not depend on the wall clock, and a restart gives each attempt its time again."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.store import Clock

from agentlightning.store.sql import core
from agentlightning.store.sql.waiting import monotonic_clock
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, RolloutConfig, RolloutStatus

SILENCE = RolloutConfig(unresponsive_seconds=30.0, timeout_seconds=600.0)
DAY = 86_400.0


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_a_wall_clock_that_is_set_changes_nothing(tmp_path: Path, jump: float) -> None:
    wall, passed = Clock(), Clock()
    store = SQLiteStore(tmp_path / "s.sqlite", clock=monotonic_clock(wall, passed))
    lease = await store.start_rollout(1, config=SILENCE)
    wall.now += jump
    passed.now += 20
    assert await store.expire() == 0
    assert await store.heartbeat("w", [lease.attempt.attempt_id]) == []
    wall.now -= jump / 2
    passed.now += 29
    assert await store.expire() == 0
    passed.now += 2
    assert await store.expire() == 1
    (attempt,) = await store.query_attempts(lease.rollout.rollout_id)
    assert (attempt.end_time or 0) - attempt.start_time == 51
    await store.close()


@pytest.mark.parametrize("jump", [0.0, 10.0, DAY, -20.0, -45.0, -DAY])
async def test_a_worker_that_lived_through_a_restart_keeps_its_attempt(tmp_path: Path, jump: float) -> None:
    """However long the store was down, and whatever the wall clock says then."""
    clock = Clock()
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    lease = await store.start_rollout(1, config=SILENCE)
    await store.heartbeat("w", [lease.attempt.attempt_id])
    await store.close()
    clock.now += jump
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    clock.now += 29
    assert await store.expire() == 0 and await store.dequeue_rollout("other") is None
    assert await store.heartbeat("w", [lease.attempt.attempt_id]) == []
    clock.now += 29
    assert await store.expire() == 0
    await store.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    assert (await store.get_rollout_by_id(lease.rollout.rollout_id)).status is RolloutStatus.SUCCEEDED
    await store.close()


@pytest.mark.parametrize("jump", [0.0, 10.0, DAY, -20.0, -45.0, -DAY])
async def test_a_worker_that_died_during_a_restart_is_found(tmp_path: Path, jump: float) -> None:
    clock = Clock()
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    await store.start_rollout(1, config=SILENCE)
    await store.close()
    clock.now += jump
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    clock.now += 29
    assert await store.expire() == 0
    clock.now += 2
    assert await store.expire() == 1
    await store.close()


@pytest.mark.parametrize("back", [1.0, 300.0, DAY])
async def test_a_clock_set_back_across_a_restart_lengthens_no_limit(tmp_path: Path, back: float) -> None:
    """Nor when it reaches again what it showed before."""
    clock = Clock()
    config = RolloutConfig(unresponsive_seconds=None, timeout_seconds=600.0)
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    lease = await store.start_rollout(1, config=config)
    await store.close()
    clock.now -= back
    opened = clock.now
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    for passed, ended in ((300.0, 0), (600.0, 0), (609.0, 0), (611.0, 1)):  # ten seconds are the runner's
        clock.now = opened + passed
        assert await store.expire() == ended
    (attempt,) = await store.query_attempts(lease.rollout.rollout_id)
    assert (attempt.status, (attempt.end_time or 0.0) - attempt.start_time) == ("timeout", 611.0)
    await store.close()


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_request_ids_outlive_a_restart_and_a_jump_and_are_forgotten_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    monkeypatch.setattr(core, "_PRUNE_EVERY", 1)
    clock = Clock()
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)
    first = await store.enqueue_rollout(1, request_id="one")
    await store.close()
    clock.now += jump
    store = SQLiteStore(tmp_path / "s.sqlite", clock=clock)

    async def remembered() -> int:
        (n,) = store.db.connection.execute("SELECT count(*) FROM requests").fetchone()
        return int(n)

    await store.enqueue_rollout(2, request_id="two")
    assert await store.enqueue_rollout(1, request_id="one") == first
    for i in range(5):
        clock.now += core.REMEMBERED / 2
        await store.enqueue_rollout(3, request_id=f"later {i}")
    assert await remembered() <= 4
    assert await store.enqueue_rollout(1, request_id="one") != first
    await store.close()
