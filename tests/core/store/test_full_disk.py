"""A disk that is full: it is said, nothing is half-written, and the store goes on when there is room."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from contract.store import Clock, call, span

from agentlightning.store.base import StoreError
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, Rollout, RolloutStatus

BIG = random.Random(0).randbytes(150_000).hex()
"""Text that does not compress below 150 kB."""


def limit(store: SQLiteStore, more: int | None) -> None:
    """Room for ``more`` pages than there are; ``None``: as many as one likes."""
    (pages,) = store.db.connection.execute("PRAGMA page_count").fetchone()
    store.db.connection.execute(f"PRAGMA max_page_count = {(1 << 30) if more is None else pages + more}")


def sound(store: SQLiteStore) -> None:
    assert store.db.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_write_that_finds_no_room_is_an_error_and_leaves_nothing(sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout(1)
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    await sqlite.add_calls([call(lease, 0)])
    limit(sqlite, 0)
    with pytest.raises(StoreError, match=r"nothing of it was stored.*full"):
        await sqlite.add_calls([call(lease, 1), call(lease, 2, request={"messages": BIG})])
    with pytest.raises(StoreError, match="full"):
        await sqlite.update_attempt(
            *ids, AttemptStatus.SUCCEEDED, spans=[span(lease), span(lease, attributes={"x": BIG})]
        )
    with pytest.raises(StoreError, match="full"):
        await sqlite.enqueue_rollout(BIG, request_id="big")
    assert len(await sqlite.query_calls(ids[0])) == 1 and await sqlite.spans(ids[0]) == []
    assert (await sqlite.get_rollout_by_id(ids[0])).status is RolloutStatus.RUNNING
    limit(sqlite, None)
    await sqlite.add_calls([call(lease, 1, request={"messages": BIG})])
    (made,) = [await sqlite.enqueue_rollout(BIG, request_id="big")]
    await sqlite.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=[span(lease)])
    assert [c.sequence for c in await sqlite.query_calls(ids[0])] == [0, 1]
    assert (await sqlite.get_rollout_by_id(made.rollout_id)).input == BIG
    sound(sqlite)


async def test_those_who_share_the_commit_are_told_the_truth(tmp_path: Path) -> None:
    """Whoever is answered has his data on file after a restart; whoever got the error has nothing there."""
    path = tmp_path / "s.sqlite"
    store = SQLiteStore(path, clock=Clock())
    limit(store, 6)

    async def put(i: int) -> Rollout:
        return await store.enqueue_rollout(BIG if i % 3 == 0 else i, rollout_id=f"ro-{i}")

    told = await asyncio.gather(*(put(i) for i in range(60)), return_exceptions=True)
    kept = {r.rollout_id for r in told if isinstance(r, Rollout)}
    failed = [r for r in told if not isinstance(r, Rollout)]
    assert failed and all(isinstance(r, StoreError) and "full" in str(r) for r in failed)
    assert {r.rollout_id for r in await store.query_rollouts()} == kept
    limit(store, None)
    again = await asyncio.gather(*(put(i) for i in range(60)))
    assert len(again) == 60
    await store.close()
    store = SQLiteStore(path, clock=Clock())
    assert len(await store.query_rollouts()) == 60
    sound(store)
    await store.close()


async def test_a_value_beyond_sqlites_limit_is_an_error(sqlite: SQLiteStore) -> None:
    sqlite.db.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    with pytest.raises(StoreError, match="too big"):
        await sqlite.enqueue_rollout(BIG)
    await sqlite.enqueue_rollout("small")
    assert [r.input for r in await sqlite.query_rollouts()] == ["small"]


@pytest.mark.parametrize("bad", ["half \ud83d", "\udcff"])
async def test_a_name_that_is_no_text_is_refused_and_named(sqlite: SQLiteStore, bad: str) -> None:
    lease = await sqlite.start_rollout(1)
    attempts: list[Any] = [
        lambda: sqlite.enqueue_rollout(1, rollout_id=bad),
        lambda: sqlite.enqueue_rollout(1, run_id=bad),
        lambda: sqlite.add_calls([call(lease), call(lease, 1, policy=bad)]),
        lambda: sqlite.count("dropped", bad),
        lambda: sqlite.query_rollouts(run_id=bad),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"surrogates not allowed"):
            await attempt()
    kept = await sqlite.add_span(span(lease, bad))
    assert kept.name == "agentlightning.bad_record" and "no UTF-8 form" in (kept.status_message or "")
    assert await sqlite.query_calls(lease.rollout.rollout_id) == []
    assert len(await sqlite.query_rollouts()) == 1
