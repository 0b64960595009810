"""The store's cache holds nothing that is not in its tables."""

from __future__ import annotations

import asyncio

import pytest
from contract.store import Clock, call, span

from agentlightning.store.base import AttemptEnded
from agentlightning.store.calls import CallIndex
from agentlightning.store.sql.core import CachedAttempt, StoreCache
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call, RolloutConfig


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
    monkeypatch.setattr("agentlightning.store.sql.core._MAX_ATTEMPTS", 3)
    cache = StoreCache()
    for i in range(10):
        cache.put(f"ro-{i}", CachedAttempt("at", 1, 1, 0, False))
    assert len(cache.attempts) <= 3 and "ro-9" in cache.attempts


def index_of(size: int) -> CallIndex:
    index = CallIndex()
    call = Call(call_id="c", rollout_id="r", attempt_id="a", prompt_ids=[1] * (size // 4), response_ids=[])
    index.delta(call)
    return index


def test_the_indexes_of_calls_are_bounded_and_the_last_one_used_goes_first() -> None:
    cache = StoreCache()
    cache.max_index_bytes = 4_300_000  # four of them
    made: list[str] = []

    def use(name: str) -> None:
        def make() -> CallIndex:
            made.append(name)
            return index_of(1 << 20)

        cache.call_index(name, make)

    for name in ("a", "b", "c", "d", "e"):
        use(name)
    assert made == ["a", "b", "c", "d", "e"]
    for name in ("a", "b", "c"):  # in turn, as rollouts under way are
        use(name)
    assert made[5:] == [], "one after the other they would all be made again if the oldest went first"
    cache.drop_call_index("a")
    use("d")
    use("b")
    assert made[5:] == ["d"]


async def test_the_index_of_an_ended_attempt_is_dropped(sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout(1)
    await sqlite.add_calls([call(lease)])
    attempt = lease.attempt.attempt_id
    assert attempt in sqlite.cache._indexes
    await sqlite.update_attempt(lease.rollout.rollout_id, attempt, AttemptStatus.SUCCEEDED)
    assert attempt not in sqlite.cache._indexes and sqlite.cache._index_bytes == 0
