"""Every statement of the store compiles for SQLite and for PostgreSQL."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Executable
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

import agentlightning.store.sql as room
from agentlightning.store import SQLiteStore
from agentlightning.store.sql import schema
from agentlightning.store.sql.database import (
    compile_for,
    delete_sql,
    insert_sql,
    update_sql,
)
from agentlightning.store.sqlite.store import SQLiteDatabase
from agentlightning.types import RolloutStatus

_POSTGRESQL = postgresql.dialect(paramstyle="named")
_SQLITE_ONLY = re.compile(r"json_each|INDEXED BY|\b(?:min|max)\([^()]*,|rowid", re.IGNORECASE)


def in_postgresql(statement: Executable) -> str:
    text = str(compile_for(_POSTGRESQL, statement))
    assert not _SQLITE_ONLY.search(text), text
    return text


def prepared(package: ModuleType) -> dict[str, Executable]:
    """Return the statements that modules of the store define when they are imported."""

    def within(name: str, value: Any) -> Iterator[tuple[str, Executable]]:
        if isinstance(value, Executable):
            yield name, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from within(f"{name}[{key}]", inner)
        elif isinstance(value, tuple):
            for place, inner in enumerate(value):
                yield from within(f"{name}[{place}]", inner)

    found: dict[str, Executable] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            found.update(within(f"{module.name}.{name}", value))
    return found


def test_prepared_statements() -> None:
    found = prepared(room)
    assert len(found) > 50, "the walk finds the statements"
    for statement in found.values():
        in_postgresql(statement)


async def test_statements_that_a_query_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    run = SQLiteDatabase._run

    def spy(self: SQLiteDatabase, statement: Executable, values: dict[str, Any]) -> sqlite3.Cursor:
        texts.append(in_postgresql(statement))
        return run(self, statement, values)

    store = SQLiteStore(":memory:")
    made = await store.enqueue_rollout(1, run_id="r", task_id="t", group_id="g")
    lease = await store.dequeue_rollout("w")
    assert lease is not None
    resources = await store.add_resources({"prompt": "x"})
    await store.add_run("r", {})
    monkeypatch.setattr(SQLiteDatabase, "_run", spy)
    for order in ("asc", "desc"):
        await store.query_rollouts(
            status=[RolloutStatus.RUNNING],
            rollout_ids=[made.rollout_id],
            run_id="r",
            group_id="g",
            mode="train",
            task_id="t",
            sort_order=order,
            after=made.rollout_id,
        )
    await store.records([made.rollout_id])
    for attempt in ("latest", None):
        await store.query_calls(made.rollout_id, attempt, limit=1)
        await store.spans(made.rollout_id, attempt, name="s", after=f"{lease.attempt.attempt_id}/1")
    await store.query_resources(after=resources.resources_id)
    await store.query_runs(after="r")
    await store.query_steps("r", after="0/p", limit=1)
    await store.query_links("r", after="0", limit=1)
    await store.wait_for_rollouts([made.rollout_id], timeout=0.0)
    assert len(set(texts)) > 20
    await store.close()


def test_statements_of_whole_columns() -> None:
    for table in schema.metadata.sorted_tables:
        columns = tuple(table.c.keys())
        for statement in (
            insert_sql(table, columns),
            update_sql(table, columns[:1], columns[1:]),
            delete_sql(table, columns),
        ):
            in_postgresql(statement)


def test_tables_and_indices() -> None:
    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=_POSTGRESQL))
        for index in table.indexes:
            made = str(CreateIndex(index).compile(dialect=_POSTGRESQL))
            assert ("WHERE" in made) == (index.dialect_options["sqlite"]["where"] is not None)


def test_the_check_finds_what_only_sqlite_knows() -> None:
    from sqlalchemy import func, select, text

    for only in (select(func.min(1, 2)), select(text("value FROM json_each('[]')"))):
        with pytest.raises(AssertionError):
            in_postgresql(only)
