"""The tables, in SQLAlchemy Core; :mod:`.migrations` bring an older file to this version.

A column is searched, joined or counted; the rest of a record is one packed blob
(:mod:`agentlightning.store.codec`). Text ids are the public ones; ``seq`` is the order of arrival.

Invariant: a file of a newer version than this code is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, MetaData, Table, Text, text
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem
from sqlalchemy.types import TypeEngine

from agentlightning.store.base import StoreError
from agentlightning.store.sqlite.file.migrations import MIGRATIONS, Migration

SCHEMA_VERSION = len(MIGRATIONS) + 1

QUEUED = "status IN ('queuing', 'requeuing')"
"""The queue. Index and queries spell the condition the same way, so that SQLite uses the index."""
OPEN_ATTEMPT = "status IN ('preparing', 'running', 'unresponsive')"
"""Attempts that may still give a sign of life; spelled once, as above. Their index stays small."""

metadata = MetaData()


def _where(condition: str) -> dict[str, Any]:
    """Restrict an index to the rows that meet a condition."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def _key(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    return [Column(name, kind, primary_key=True) for name in names]


def _required(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def _numbered(name: str, *items: SchemaItem, **options: Any) -> Table:
    """Make a table whose rows the database numbers in order of arrival."""
    return Table(name, metadata, *_key(Integer, "seq"), *items, **options)


meta = Table("meta", metadata, *_key(Text, "key"), *_required(Text, "value"))

runs = Table(
    "runs",
    metadata,
    *_key(Text, "run_id"),
    *_required(Float, "create_time", "update_time"),
    *_required(LargeBinary, "info"),
    *_optional(LargeBinary, "config"),  # for rollouts without a configuration of their own
)

steps = Table(
    "steps",
    metadata,
    *_key(Text, "run_id"),
    *_key(Integer, "step"),
    *_key(Text, "policy"),
    *_required(Float, "time"),
    *_required(LargeBinary, "report"),
)

fingerprints = _numbered(
    "fingerprints",
    *_required(Text, "run_id", "policy", "rollout_id"),
    *_required(Integer, "step"),
    *_required(LargeBinary, "fingerprint"),
    Index("fingerprints_step", "run_id", "step", "policy", "rollout_id", unique=True),
    Index("fingerprints_rollout", "rollout_id"),
)

links = Table(
    "links",
    metadata,
    *_key(Text, "run_id"),
    *_key(Integer, "number"),
    *_required(LargeBinary, "link"),
)

reward_versions = _numbered(
    "reward_versions",
    *_required(Text, "run_id", "name"),
    *_required(LargeBinary, "version"),
    Index("reward_versions_name", "run_id", "name", unique=True),
)

rescored = Table(
    "rescored",
    metadata,
    *_key(Text, "rollout_id", "version"),
    *_required(Integer, "failed"),  # 1: the function gave an error and no reward
    *_required(LargeBinary, "data"),
    sqlite_with_rowid=False,
)

resources = _numbered(
    "resources",
    *_required(Text, "resources_id"),
    *_required(Integer, "version"),
    *_required(Float, "create_time"),
    *_required(LargeBinary, "data"),
    Index("resources_id_version", "resources_id", "version", unique=True),
)

rollouts = _numbered(
    "rollouts",
    *_required(Text, "rollout_id", "status", "mode"),
    *_optional(Text, "run_id", "task_id", "group_id", "resources_id", "reason"),
    *_required(Integer, "sample", "attempts"),
    *_optional(Integer, "seed", "resources_version"),
    # attempts up to this number may not write and do not count against max_attempts
    Column("forgiven", Integer, nullable=False, server_default="0"),
    *_required(Float, "start_time"),
    *_optional(Float, "end_time", "timeout_seconds", "unresponsive_seconds"),
    *_required(LargeBinary, "input"),
    *_optional(LargeBinary, "config", "metadata"),
    Index("rollouts_id", "rollout_id", unique=True),
    Index("rollouts_run", "run_id", **_where("run_id IS NOT NULL")),
    Index("rollouts_group", "group_id", **_where("group_id IS NOT NULL")),
    Index("rollouts_queue", "seq", **_where(QUEUED)),
    Index("rollouts_queue_run", "run_id", "seq", **_where(f"{QUEUED} AND run_id IS NOT NULL")),
)

attempts = Table(
    "attempts",
    metadata,
    *_key(Text, "rollout_id"),
    *_key(Integer, "sequence_id"),
    *_required(Text, "attempt_id", "status"),
    *_optional(Text, "worker_id", "reason", "resources_id"),
    *_required(Integer, "fence"),
    *_required(Integer, "arrivals"),  # number of its spans and calls
    *_optional(Integer, "resources_version"),
    *_required(Float, "start_time"),
    *_optional(Float, "end_time", "last_heartbeat_time"),
    *_optional(LargeBinary, "metadata"),
    Index("attempts_held", "attempt_id", **_where(OPEN_ATTEMPT)),
    sqlite_with_rowid=False,
)

spans = _numbered(
    "spans",
    *_required(Text, "rollout_id", "attempt_id", "name"),
    *_required(Integer, "sequence"),
    *_required(Integer, "wire"),  # 1: made by the wire layer
    # 1: a reward that the agent returned; only the runner writes such spans
    Column("returned", Integer, nullable=False, server_default="0"),
    *_required(LargeBinary, "data"),
    Index("spans_attempt", "rollout_id", "attempt_id", "sequence"),
    Index("spans_returned", "rollout_id", "attempt_id", **_where("returned = 1")),
)

calls = _numbered(
    "calls",
    *_required(Text, "call_id", "rollout_id", "attempt_id", "policy", "status"),
    *_required(Integer, "sequence", "choice"),
    *_required(Integer, "arrival"),  # sequence number among the attempt's spans
    *_optional(Integer, "policy_version"),
    *_optional(Integer, "prompt_tokens"),  # of the request, on its first choice
    *_optional(Integer, "completion_tokens"),
    *_optional(Integer, "size"),  # bytes of data
    *_optional(Float, "seconds"),
    *_required(LargeBinary, "data"),
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
    *_key(Text, "worker_id"),
    *_required(Text, "status"),
    *_optional(Text, "current_rollout_id", "current_attempt_id"),
    *_optional(Float, "last_heartbeat_time"),
    *_optional(LargeBinary, "stats"),
)

counts = Table(
    "counts",
    metadata,
    *_key(Text, "rollout_id", "attempt_id", "kind", "reason"),  # ids are '' for counts of no rollout
    *_required(Integer, "n"),
    sqlite_with_rowid=False,
)

requests = _numbered(
    "requests",
    *_required(Text, "request_id", "method"),
    *_required(Float, "time"),
    *_required(LargeBinary, "answer"),
    Index("requests_id", "request_id", unique=True),
)


def version_of(connection: sqlite3.Connection) -> int | None:
    """Return the schema version of a file; ``None``: an empty file."""
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
    """Raise :class:`StoreError` for a file that a newer agentlightning made."""
    if version > known:
        raise StoreError(
            f"the store has schema version {version}, this agentlightning knows versions up to {known}: "
            "upgrade agentlightning, or open another file"
        )


def create(connection: sqlite3.Connection) -> None:
    """Make all tables and indices, inside the caller's transaction."""
    for statement in _statements():
        connection.execute(statement)
    connection.execute("INSERT INTO meta (key, value) VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))


@cache
def _statements() -> tuple[str, ...]:
    """Return the SQL of all tables and indices. To compile it takes longer than to run it."""
    dialect = sqlite_dialect()
    made: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        indices = sorted(table.indexes, key=lambda index: str(index.name))
        made += [CreateTable(table), *map(CreateIndex, indices)]
    return tuple(str(one.compile(dialect=dialect)) for one in made)


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
