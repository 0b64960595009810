"""The drill of PostgreSQL: its account sees what is lost, doubled or leased twice; a few kills are made."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.postgres_server import binaries
from drills.postgres import Client, audit, drill

from agentlightning.store import SQLiteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    """A store to which a process of the drill has written; the account asks any store."""
    made = SQLiteStore(tmp_path / "store.sqlite")
    writer = Client(made, "c0-1", tmp_path)
    for _ in range(3):
        await writer.enqueue()
    for lease in await made.dequeue_many_rollouts("w", limit=100):
        await writer.do(lease)
    writer.journal.file.close()
    yield made
    await made.close()


async def found(store: SQLiteStore, folder: Path) -> tuple[int, int, int]:
    one = await audit("", folder, store)
    assert one["unfinished"] == 0
    return one["lost"], one["doubled"], one["double_leases"]


async def change(store: SQLiteStore, statement: str) -> None:
    await store.writer.write(lambda: store.db.connection.execute(statement))


async def test_nothing_is_missing_and_nothing_is_there_twice(store: SQLiteStore, tmp_path: Path) -> None:
    assert await found(store, tmp_path) == (0, 0, 0)


@pytest.mark.parametrize("table", ["calls", "spans", "counts"])
async def test_what_is_gone_is_lost(store: SQLiteStore, tmp_path: Path, table: str) -> None:
    await change(store, f"DELETE FROM {table}")
    lost, doubled, leases = await found(store, tmp_path)
    assert lost >= 3 and (doubled, leases) == (0, 0)


async def test_an_end_that_is_not_there_is_lost(store: SQLiteStore, tmp_path: Path) -> None:
    await change(store, "UPDATE attempts SET status = 'failed'")
    assert (await found(store, tmp_path))[0] >= 3


async def test_what_is_there_twice_is_seen(store: SQLiteStore, tmp_path: Path) -> None:
    names = "rollout_id, attempt_id, name, sequence, wire, returned, data"
    await change(store, f"INSERT INTO spans ({names}) SELECT {names} FROM spans WHERE seq = 1")
    await change(store, "UPDATE counts SET n = n + 1 WHERE kind = 'drill'")
    assert await found(store, tmp_path) == (0, 3, 0)  # a span, its number, a count


async def test_two_holders_of_one_fence_are_seen(store: SQLiteStore, tmp_path: Path) -> None:
    lines = (tmp_path / "c0-1.journal").read_text().splitlines()
    lease = next(json.loads(line) for line in lines if '"leased"' in line)
    (tmp_path / "c1-1.journal").write_text(json.dumps({**lease, "attempt": "at-another"}) + "\n")
    assert await found(store, tmp_path) == (0, 0, 1)


@pytest.mark.nightly
def test_a_few_kills() -> None:
    pytest.importorskip("agl_postgres.store")
    if binaries() is None:
        pytest.skip("no PostgreSQL server: `make test-postgres` brings one")
    result = drill(kills=4, seed=3)
    assert (result["lost"], result["doubled"], result["double_leases"], result["unfinished"]) == (0, 0, 0, 0)
    assert result["kills"] == 4
