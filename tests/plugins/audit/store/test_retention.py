"""Deleting a run: in small transactions, while others write; interrupted, it goes on where it stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from contract.store import Clock
from core.store.test_full_disk import BIG, limit

from agentlightning.store.base import Conflict, StoreError
from agentlightning.store.sql.core import Tables
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, Rollout
from agl_audit.store import retention
from agl_cluster.commands.store import keep_pruned

MANY = 200


@pytest.fixture
async def filled(sqlite: SQLiteStore) -> SQLiteStore:
    """A finished run of many rollouts that used resources of its own."""
    used = await sqlite.add_resources({"p": "used"})
    await sqlite.add_resources({"p": "latest"})
    given = [Rollout(rollout_id=f"ro-{i}", run_id="old", resources_id=used.resources_id) for i in range(MANY)]
    await sqlite.enqueue_many_rollouts(given)
    for lease in await sqlite.dequeue_many_rollouts("w", MANY):
        await sqlite.update_attempt(
            lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED
        )
    return sqlite


async def test_others_write_between_two_transactions(filled: SQLiteStore) -> None:
    commits, written = filled.writer.commits, 0
    deleting = asyncio.create_task(filled.delete_run("old"))
    while not deleting.done():
        await filled.enqueue_rollout(written, run_id="new")
        written += 1
    assert (await deleting)["rollouts"] == MANY
    assert written > MANY / retention._ROLLOUTS_PER_TRANSACTION
    assert filled.writer.commits - commits > MANY / retention._ROLLOUTS_PER_TRANSACTION
    assert len(await filled.query_rollouts(run_id="new")) == written


async def test_a_deletion_that_was_interrupted_goes_on(
    filled: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece, left = retention._delete_piece, iter(range(3))

    def failing(store: Tables, query: Any, **values: Any) -> tuple[dict[str, int], int]:
        if next(left, None) is None:
            raise StoreError("power cut")
        return piece(store, query, **values)

    monkeypatch.setattr(retention, "_delete_piece", failing)
    with pytest.raises(StoreError, match="power cut"):
        await filled.delete_run("old")
    assert len(await filled.query_rollouts(run_id="old")) == MANY - 3 * retention._ROLLOUTS_PER_TRANSACTION
    monkeypatch.setattr(retention, "_delete_piece", piece)
    gone = await filled.delete_run("old")
    assert gone["rollouts"] == MANY - 3 * retention._ROLLOUTS_PER_TRANSACTION and gone["resources"] == 1
    assert filled.db.connection.execute("SELECT key FROM meta").fetchall() == [("schema_version",)]


async def test_two_who_delete_the_same_run_do_not_disturb_each_other(filled: SQLiteStore) -> None:
    both = await asyncio.gather(filled.delete_run("old"), filled.delete_run("old"))
    assert sum(gone["rollouts"] for gone in both) == MANY
    assert await filled.query_rollouts(run_id="old") == []


async def test_a_run_that_comes_to_life_stops_its_deletion(filled: SQLiteStore) -> None:
    deleting = asyncio.create_task(filled.delete_run("old"))
    while len(await filled.query_rollouts(run_id="old")) == MANY:
        await asyncio.sleep(0)
    last = f"ro-{MANY - 1}"
    await filled.requeue_rollouts([last], reason="resumed")
    await filled.start_attempt(last, worker_id="w")
    with pytest.raises(Conflict, match="at work"):
        await deleting
    assert (await filled.get_rollout_by_id(last)).attempts == 2


async def test_whoever_waits_for_a_deleted_rollout_is_told(sqlite: SQLiteStore) -> None:
    made = await sqlite.enqueue_rollout(1, run_id="r")
    waiting = asyncio.create_task(sqlite.wait_for_rollouts([made.rollout_id]))
    await sqlite.statistics()
    await sqlite.delete_run("r")
    with pytest.raises(StoreError, match="no rollout"):
        await waiting


async def test_freed_space_is_used_again(sqlite: SQLiteStore) -> None:
    async def fill() -> int:
        await sqlite.enqueue_many_rollouts(
            [
                Rollout(rollout_id="", run_id="r", input="".join(map(chr, range(i, i + 20_000))))
                for i in range(40)
            ]
        )
        return int((await sqlite.statistics())["bytes"])

    size = await fill()
    for _ in range(5):
        await sqlite.delete_run("r")
        assert await fill() <= size * 1.1


async def test_pruning_goes_on_after_an_error(
    filled: SQLiteStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([StoreError("disk full")])
    told: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    async def prune() -> dict[str, int]:
        if error := next(errors, None):
            raise error
        return await filled.prune(older_than=10.0)

    clock.now += 100
    with caplog.at_level(logging.ERROR):
        keeping = asyncio.create_task(keep_pruned(prune, told.put_nowait, every=0.0))
        assert (await told.get())["rollouts"] == MANY
    assert "disk full" in caplog.text
    keeping.cancel()


async def test_deleting_makes_room(sqlite: SQLiteStore) -> None:
    for i in range(3):
        await sqlite.enqueue_rollout(BIG + str(i), run_id="old")
    limit(sqlite, 1)
    with pytest.raises(StoreError, match="full"):
        await sqlite.enqueue_rollout(BIG)
    await sqlite.delete_run("old")
    assert (await sqlite.statistics())["free_bytes"] > len(BIG)
    await sqlite.enqueue_rollout(BIG)
