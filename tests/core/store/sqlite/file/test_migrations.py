"""A file of an older version becomes one of this version, with all that was in it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from agentlightning.credit import assign, rows_digest
from agentlightning.credit.fingerprints.digest import canonical_order
from agentlightning.credit.fingerprints.fingerprint import fingerprint_rollouts
from agentlightning.recipes import GRPO
from agentlightning.store import codec
from agentlightning.store.base import StoreError
from agentlightning.store.sql import schema
from agentlightning.store.sqlite.file import versions
from agentlightning.store.sqlite.file.migrations import MIGRATIONS
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, RolloutConfig, RolloutFingerprint, RolloutStatus, StepReport

VERSION_1 = Path(__file__).with_name("version1.sql")
VERSION_4 = Path(__file__).with_name("version4.sql")
THEN = json.loads(Path(__file__).with_name("version4.json").read_text())
"""Calls, fingerprints and the digest of the rows, as version 4 made them from its file."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()
    return path


def layout(path: Path) -> dict[str, object]:
    """Every table's columns, and every index with what it is over."""
    connection = sqlite3.connect(path)
    found: dict[str, object] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        if kind == "table":
            rows = connection.execute(f"PRAGMA table_info({name})").fetchall()
            found[name] = {row[1:] for row in rows}
        elif sql is not None:
            found[name] = " ".join(sql.split())
    connection.close()
    return found


def test_a_migrated_file_looks_like_a_fresh_one(old: Path, tmp_path: Path) -> None:
    assert layout(old) != layout_of_fresh(tmp_path)
    asyncio.run(SQLiteStore(old).close())
    assert layout(old) == layout_of_fresh(tmp_path)


def layout_of_fresh(tmp_path: Path) -> dict[str, object]:
    asyncio.run(SQLiteStore(tmp_path / "fresh.sqlite").close())
    return layout(tmp_path / "fresh.sqlite")


async def test_rows_of_version_1_are_all_there(old: Path) -> None:
    store = SQLiteStore(old)
    assert versions.version_of(store.db.connection) == schema.SCHEMA_VERSION
    rollouts = await store.query_rollouts(run_id="run")
    assert [r.status for r in rollouts] == [
        RolloutStatus.SUCCEEDED,
        RolloutStatus.RUNNING,
        RolloutStatus.QUEUING,
    ]
    (record,) = await store.records(["ro-0"])
    assert [c.response_ids for c in record.calls] == [[4, 5]] * 3 and record.rewards[0].value == 1.0
    rows = store.db.connection.execute(
        "SELECT prompt_tokens, completion_tokens, seconds, size = length(data) FROM calls ORDER BY seq"
    ).fetchall()
    assert rows == [(3, 2, 0.25, 1), (17, 9, 0.5, 1), (None, 2, 0.5, 1)]
    assert (await store.query_runs())[0]["recipe"] == "grpo"
    assert await store.query_steps("run") != [] and await store.query_fingerprints("run") == []
    assert await store.counts("ro-0") == {"dropped": {"stale": 1}}
    await store.close()


async def test_a_migrated_file_does_all_that_a_fresh_one_does(old: Path) -> None:
    store = SQLiteStore(old)
    (back, _) = await store.requeue_rollouts(["ro-0", "ro-2"], reason="resumed")
    lease = await store.dequeue_rollout("w")
    assert back.attempts == 1 and lease is not None and lease.attempt.sequence_id == 2
    await store.update_attempt("ro-0", lease.attempt.attempt_id, AttemptStatus.FAILED)
    assert (await store.get_rollout_by_id("ro-0")).status is RolloutStatus.REQUEUING
    report = StepReport(run_id="run", step=0, policy="p", policy_version=1)
    await store.add_step(report, [RolloutFingerprint(run_id="run", step=0, policy="p", rollout_id="ro-0")])
    assert await store.query_steps("run") == [report] and len(await store.query_fingerprints("run")) == 1
    await store.close()


async def test_rollouts_of_version_3_are_tried_as_they_would_have_been_then(old: Path) -> None:
    """Version 3 stored no default configuration: one attempt without limits. The default has changed."""
    connection = sqlite3.connect(old, isolation_level=None)
    versions.prepare(connection, MIGRATIONS[:2])
    connection.execute("UPDATE rollouts SET config = NULL")
    connection.close()
    store = SQLiteStore(old)
    for rollout in await store.query_rollouts():
        config = rollout.config
        assert (config.max_attempts, config.unresponsive_seconds, config.retry_on) == (1, None, [])
        assert (rollout.resources_version, config.trusted) == (None, True)
    (record,) = await store.records(["ro-0"])
    assert [(r.value, r.returned) for r in record.rewards] == [(1.0, False)]
    made = await store.enqueue_rollout(1, run_id="run")
    assert made.config == RolloutConfig()
    await store.close()


async def test_calls_of_version_4_are_read_fingerprinted_and_built_on(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_4.read_text())
    connection.close()
    store = SQLiteStore(path)
    records = await store.records(["ro-0", "ro-1"])
    later = {"grammar": None, "logprobs_mode": None, "policy_versions": None}
    then = [[call | later for call in calls] for calls in THEN["calls"]]
    assert [[call.model_dump() for call in record.calls] for record in records] == then
    batch = assign(records, GRPO(group_size=2), version=3)
    assert rows_digest(canonical_order(batch.rows)) == THEN["rows_digest"]
    fingerprints = fingerprint_rollouts(
        batch, records, run_id="run", step=0, policy="default", version=3, layout=1
    )
    assert [one.model_dump() for one in fingerprints] == [{**one, "layout": 1} for one in THEN["seals"]]
    await store.requeue_rollouts(["ro-0"], reason="again")
    lease = await store.dequeue_rollout("w")
    assert lease is not None
    await store.add_calls(
        [
            structs.replace(c, call_id=f"new-{c.call_id}", attempt_id=lease.attempt.attempt_id)
            for c in records[0].calls
        ]
    )
    (record,) = await store.records(["ro-0"])
    assert [c.prompt_ids for c in record.calls] == [c.prompt_ids for c in records[0].calls]
    bodies = [
        codec.unpack(blob, codec.CallBody)
        for (blob,) in store.db.connection.execute(
            "SELECT data FROM calls WHERE call_id LIKE 'new-%' ORDER BY seq"
        )
    ]
    assert [body.ids_parent is not None for body in bodies] == [False, True, True, True, False]
    await store.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(old: Path) -> None:
    connection = sqlite3.connect(old)
    connection.execute("UPDATE calls SET data = X'FF' WHERE seq = 3")
    connection.commit()
    connection.close()
    before = layout(old)
    with pytest.raises((StoreError, ValueError), match="blob"):
        SQLiteStore(old)
    assert layout(old) == before


def test_migrations_reach_the_version_of_the_tables() -> None:
    assert len(MIGRATIONS) + 1 == schema.SCHEMA_VERSION
