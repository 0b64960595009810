"""The store's cache holds nothing that is not in its tables."""

from __future__ import annotations

import asyncio

import pytest
from contract.store import Clock, call, span

from agentlightning.store.base import AttemptEnded
from agentlightning.store.sql.cache import CachedAttempt, StoreCache
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, RolloutConfig


async def test_numbers_have_no_gap_after_a_write_that_was_undone(sqlite: SQLiteStore) -> None:
    lease, ended = await sqlite.start_rollout(1), await sqlite.start_rollout(2)
    assert (await sqlite.add_span(span(lease))).sequence_id == 1
    await sqlite.update_attempt(ended.rollout.rollout_id, ended.attempt.attempt_id, AttemptStatus.FAILED)
    with pytest.raises(AttemptEnded):
        await sqlite.add_many_spans([span(lease), span(ended)])
    assert (await sqlite.add_span(span(lease))).sequence_id == 2


async def test_a_failed_commit_is_forgotten(sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout(1)
    connection = sqlite.db.connection
    connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    connection.execute("PRAGMA foreign_keys = ON")  # a violated deferred key fails at COMMIT
    poison = sqlite.writer.write(lambda: connection.execute("INSERT INTO child VALUES (7)"))
    await asyncio.gather(sqlite.add_span(span(lease)), poison, return_exceptions=True)
    assert (await sqlite.add_span(span(lease))).sequence_id == 1


async def test_every_end_of_an_attempt_is_noticed_by_the_next_write(sqlite: SQLiteStore) -> None:
    for end in ("update", "cancel", "takeover"):
        lease = await sqlite.start_rollout(end)
        of, attempt = lease.rollout.rollout_id, lease.attempt.attempt_id
        await sqlite.add_calls([call(lease)], fence=1)
        if end == "update":
            await sqlite.update_attempt(of, attempt, AttemptStatus.SUCCEEDED)
        elif end == "cancel":
            await sqlite.update_rollout(of, "cancelled")  # type: ignore[arg-type]
        else:
            await sqlite.start_attempt(of)
        for fence in (1, None):
            with pytest.raises(AttemptEnded):
                await sqlite.add_calls([call(lease, 1)], fence=fence)
        assert await sqlite.heartbeat("w", [attempt]) == [attempt]
        assert len(await sqlite.query_calls(of, attempt)) == 1


async def test_a_wrong_fence_is_refused_although_the_attempt_is_in_mind(sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout(1)
    await sqlite.add_calls([call(lease)], fence=1)
    with pytest.raises(AttemptEnded):
        await sqlite.add_calls([call(lease, 1)], fence=2)


async def test_limits_that_come_later_are_noticed(sqlite: SQLiteStore, clock: Clock) -> None:
    lease = await sqlite.start_rollout(1, config=RolloutConfig(unresponsive_seconds=None))
    assert await sqlite.expire() == 0 and await sqlite.expire(clock.now + 1e6) == 0
    await sqlite.update_rollout(lease.rollout.rollout_id, config=RolloutConfig(unresponsive_seconds=5.0))
    assert await sqlite.expire(clock.now + 4) == 0 and await sqlite.expire(clock.now + 6) == 1


async def test_an_attempt_that_came_back_to_life_expires_again(sqlite: SQLiteStore, clock: Clock) -> None:
    config = RolloutConfig(
        unresponsive_seconds=5.0, max_attempts=3, retry_condition=[AttemptStatus.UNRESPONSIVE]
    )
    lease = await sqlite.start_rollout(1, config=config)
    for _ in range(2):
        clock.now += 6
        assert await sqlite.expire() == 1 and await sqlite.expire() == 0
        await sqlite.add_span(span(lease))
    clock.now += 6
    assert await sqlite.expire() == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentlightning.store.sql.cache._MAX_ATTEMPTS", 3)
    cache = StoreCache()
    for i in range(10):
        cache.put(f"ro-{i}", CachedAttempt("at", 1, 1, 0, False))
    assert len(cache.attempts) <= 3 and "ro-9" in cache.attempts
