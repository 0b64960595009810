"""The tables, in SQLAlchemy Core; :mod:`.migrations` bring an older file to this version.

A column is searched, joined or counted; the rest of a record is one packed blob
(:mod:`agentlightning.store.codec`). Text ids are the public ones; ``seq`` is the order of arrival.

Invariant: a file whose version is newer than this code is refused, never guessed at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from agentlightning.store.base import StoreError
from agentlightning.store.sqlite.file.migrations import MIGRATIONS, Migration

SCHEMA_VERSION = len(MIGRATIONS) + 1

QUEUED = "status IN ('queuing', 'requeuing')"
"""The queue. Index and queries spell the condition the same way, so that SQLite uses the index."""
OPEN_ATTEMPT = "status IN ('preparing', 'running', 'unresponsive')"
"""Attempts that may still give a sign of life; spelled once, as above. Their index stays small."""

metadata = MetaData()


def _where(condition: str) -> dict[str, Any]:
    """An index of those rows only."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    Column("info", LargeBinary, nullable=False),
    Column("config", LargeBinary),  # of its rollouts that name none themselves
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("policy", Text, nullable=False),
    Column("time", Float, nullable=False),
    Column("report", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "step", "policy"),
)

seals = Table(
    "seals",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("policy", Text, nullable=False),
    Column("rollout_id", Text, nullable=False),
    Column("seal", LargeBinary, nullable=False),
    Index("seals_step", "run_id", "step", "policy", "rollout_id", unique=True),
    Index("seals_rollout", "rollout_id"),
)

links = Table(
    "links",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("link", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "number"),
)

resources = Table(
    "resources",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("resources_id", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("create_time", Float, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("resources_id_version", "resources_id", "version", unique=True),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("rollout_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("run_id", Text),
    Column("task_id", Text),
    Column("group_id", Text),
    Column("sample", Integer, nullable=False),
    Column("seed", Integer),
    Column("resources_id", Text),
    Column("attempts", Integer, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("reason", Text),
    Column("timeout_seconds", Float),
    Column("unresponsive_seconds", Float),
    Column("input", LargeBinary, nullable=False),
    Column("config", LargeBinary),
    Column("metadata", LargeBinary),
    # attempts up to this number may not write and do not count against max_attempts
    Column("forgiven", Integer, nullable=False, server_default="0"),
    Column("resources_version", Integer),
    Index("rollouts_id", "rollout_id", unique=True),
    Index("rollouts_run", "run_id", **_where("run_id IS NOT NULL")),
    Index("rollouts_group", "group_id", **_where("group_id IS NOT NULL")),
    Index("rollouts_queue", "seq", **_where(QUEUED)),
    Index("rollouts_queue_run", "run_id", "seq", **_where(f"{QUEUED} AND run_id IS NOT NULL")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", Text, nullable=False),
    Column("rollout_id", Text, nullable=False),
    Column("sequence_id", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("worker_id", Text),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("last_heartbeat_time", Float),
    Column("reason", Text),
    Column("metadata", LargeBinary),
    Column("arrivals", Integer, nullable=False),  # number of its spans and calls
    Column("resources_id", Text),
    Column("resources_version", Integer),
    PrimaryKeyConstraint("rollout_id", "sequence_id"),
    Index("attempts_held", "attempt_id", **_where(OPEN_ATTEMPT)),
    sqlite_with_rowid=False,
)

spans = Table(
    "spans",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("rollout_id", Text, nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("wire", Integer, nullable=False),  # 1: made by the wire layer
    Column("data", LargeBinary, nullable=False),
    # 1: a reward that the agent returned; only the runner writes such spans
    Column("returned", Integer, nullable=False, server_default="0"),
    Index("spans_attempt", "rollout_id", "attempt_id", "sequence"),
    Index("spans_returned", "rollout_id", "attempt_id", **_where("returned = 1")),
)

calls = Table(
    "calls",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("call_id", Text, nullable=False),
    Column("rollout_id", Text, nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("choice", Integer, nullable=False),
    Column("arrival", Integer, nullable=False),  # sequence number among the attempt's spans
    Column("policy", Text, nullable=False),
    Column("policy_version", Integer),
    Column("status", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("prompt_tokens", Integer),  # of the request, on its first choice
    Column("completion_tokens", Integer),
    Column("seconds", Float),
    Column("size", Integer),  # bytes of data
    Index("calls_id", "call_id", unique=True),
    # statistics read only this index
    Index(
        "calls_attempt",
        *("rollout_id", "attempt_id", "sequence"),
        *("prompt_tokens", "completion_tokens", "seconds", "size"),
    ),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("last_heartbeat_time", Float),
    Column("current_rollout_id", Text),
    Column("current_attempt_id", Text),
    Column("stats", LargeBinary),
)

counts = Table(
    "counts",
    metadata,
    Column("rollout_id", Text, nullable=False),  # '' for counts of no rollout
    Column("attempt_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("n", Integer, nullable=False),
    PrimaryKeyConstraint("rollout_id", "attempt_id", "kind", "reason"),
    sqlite_with_rowid=False,
)

requests = Table(
    "requests",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("time", Float, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Index("requests_id", "request_id", unique=True),
)


def version_of(connection: sqlite3.Connection) -> int | None:
    """The schema version of a file; ``None``: an empty file."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
            raise StoreError(
                "this SQLite file belongs to another program: it has tables, but no table 'meta'"
            )
        return None
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None:
        raise StoreError("this SQLite file has a table 'meta' without a schema_version: not a store of ours")
    return int(row[0])


def refuse_newer(version: int, known: int = SCHEMA_VERSION) -> None:
    """:class:`StoreError` for a file that a newer agentlightning made."""
    if version > known:
        raise StoreError(
            f"the store has schema version {version}, this agentlightning knows versions up to {known}: "
            "upgrade agentlightning, or open another file"
        )


def create(connection: sqlite3.Connection) -> None:
    """Make all tables and indices, inside the caller's transaction."""
    dialect = sqlite_dialect()
    for table in metadata.sorted_tables:
        connection.execute(str(CreateTable(table).compile(dialect=dialect)))
        for index in sorted(table.indexes, key=lambda i: str(i.name)):
            connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
    connection.execute("INSERT INTO meta (key, value) VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))


def prepare(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a file to this version, or refuse it: create, migrate, or raise :class:`StoreError`."""
    target = len(migrations) + 1
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)
        if version is None:
            create(connection)
        else:
            refuse_newer(version, target)
            for step in range(version, target):
                migrations[step - 1](connection)
                connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(step + 1),))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
