"""The operations that agl-audit adds to stores, in a SQLite file and over HTTP."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from contract.added import AddedOperationsContract
from core.store.sql.test_statements import in_postgresql, prepared
from sqlalchemy import Executable

import agl_audit.store
from agentlightning.plugins.manager import NotInstalled, build, load
from agentlightning.store.sqlite.store import SQLiteDatabase, SQLiteStore
from agl_cluster.store.client import StoreClient


class TestSQLite(AddedOperationsContract):
    @pytest.fixture
    async def store(self, sqlite: SQLiteStore) -> SQLiteStore:
        return sqlite


class TestClient(AddedOperationsContract):
    @pytest.fixture
    async def store(self, client: StoreClient) -> StoreClient:
        return client


def test_prepared_statements_run_in_both_databases() -> None:
    found = prepared(agl_audit.store)
    assert len(found) > 15
    for statement in found.values():
        in_postgresql(statement)


async def test_statements_of_statistics(sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: set[str] = set()
    run = SQLiteDatabase._run

    def spy(self: SQLiteDatabase, statement: Executable, values: dict[str, Any]) -> sqlite3.Cursor:
        texts.add(in_postgresql(statement))
        return run(self, statement, values)

    monkeypatch.setattr(SQLiteDatabase, "_run", spy)
    await sqlite.statistics()
    await sqlite.statistics("r")
    assert len(texts) > 10
    made = await sqlite.enqueue_rollout(1, run_id="r")
    known = len(texts)
    for attempt in ("latest", None):
        await sqlite.query_spans(made.rollout_id, attempt)
    await sqlite.query_workers(status="busy", after="a")
    await sqlite.query_fingerprints("r", 0, "ro-1", limit=1)
    assert len(texts) > known + 5


async def test_a_store_without_the_plugin_names_what_to_install(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_PLUGINS", "")
    load.cache_clear()
    assert not build(discover=False).store_operations
    with pytest.raises(NotInstalled, match=r"a store's statistics: it comes with agl-audit"):
        await sqlite.statistics()
    with pytest.raises(AttributeError, match="a store has no 'statistic'"):
        await sqlite.statistic()
    client = StoreClient("http://127.0.0.1:1")
    with pytest.raises(NotInstalled, match=r"a store's prune: it comes with agl-audit"):
        await client.prune(keep_runs=1)


async def test_added_operations_take_part_in_batches(sqlite: SQLiteStore, client: StoreClient) -> None:
    calls = [("add_run", {"run_id": "r", "info": {}}), ("statistics", {}), ("delete_run", {"run_id": "r"})]
    for store in (sqlite, client):
        made, sums, gone = await store.batch(calls, request_id="same")
        assert made is None and sums["runs"] == 1 and gone["runs"] == 1
    unknown = await sqlite.batch([("statistic", {})])
    assert isinstance(unknown[0], ValueError) and "there is no 'statistic'" in str(unknown[0])
