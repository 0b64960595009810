"""The tables, in SQLAlchemy Core.

A column is searched, joined or counted; the rest of a record is one packed blob
(:mod:`agentlightning.store.codec`). Text ids are the public ones; ``seq`` is the order of arrival. Text is
compared byte by byte, and whole numbers have 64 bits, in every database.

Invariant: a database of a newer version than this code is refused.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text as AnyText,
    text,
)
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem
from sqlalchemy.types import TypeEngine

from agentlightning.store.base import StoreError

SCHEMA_VERSION = 8
"""The version of these tables. A change of them raises it: a store of another version is refused."""

QUEUED = "status IN ('queuing', 'requeuing')"
"""The queue. Index and queries spell the condition the same way, so that SQLite uses the index."""
OPEN_ATTEMPT = "status IN ('preparing', 'running', 'unresponsive')"
"""Attempts that may still give a sign of life; spelled once, as above. Their index stays small."""

metadata = MetaData()
WholeNumber = BigInteger().with_variant(Integer(), "sqlite")
Text = AnyText().with_variant(AnyText(collation="C"), "postgresql")


_Type = TypeEngine[Any] | type[TypeEngine[Any]]


def _where(condition: str) -> dict[str, Any]:
    """Restrict an index to the rows that meet a condition."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def _key(kind: _Type, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, primary_key=True) for name in names]


def _required(kind: _Type, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: _Type, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def _numbered(name: str, *items: SchemaItem, **options: Any) -> Table:
    """Make a table whose rows the database numbers in order of arrival."""
    return Table(name, metadata, *_key(WholeNumber, "seq"), *items, **options)


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
    *_key(WholeNumber, "step"),
    *_key(Text, "policy"),
    *_required(Float, "time"),
    *_required(LargeBinary, "report"),
)

fingerprints = _numbered(
    "fingerprints",
    *_required(Text, "run_id", "policy", "rollout_id"),
    *_required(WholeNumber, "step"),
    *_required(LargeBinary, "fingerprint"),
    Index("fingerprints_step", "run_id", "step", "policy", "rollout_id", unique=True),
    Index("fingerprints_rollout", "rollout_id"),
)

links = Table(
    "links",
    metadata,
    *_key(Text, "run_id"),
    *_key(WholeNumber, "number"),
    *_required(LargeBinary, "link"),
)

# what plugins keep beside the rows of a run, such as rewards that were given afterwards
notes = _numbered(
    "notes",
    *_required(Text, "kind", "run_id", "name"),
    *_required(LargeBinary, "data"),
    Index("notes_name", "run_id", "kind", "name", unique=True),
)

resources = _numbered(
    "resources",
    *_required(Text, "resources_id"),
    *_required(WholeNumber, "version"),
    *_required(Float, "create_time"),
    *_required(LargeBinary, "data"),
    Index("resources_id_version", "resources_id", "version", unique=True),
)

rollouts = _numbered(
    "rollouts",
    *_required(Text, "rollout_id", "status", "mode"),
    *_optional(Text, "run_id", "task_id", "group_id", "resources_id", "reason"),
    *_required(WholeNumber, "sample", "attempts"),
    *_optional(WholeNumber, "seed", "resources_version"),
    # attempts up to this number may not write and do not count against max_attempts
    Column("forgiven", WholeNumber, nullable=False, server_default="0"),
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
    *_key(WholeNumber, "sequence_id"),
    *_required(Text, "attempt_id", "status"),
    *_optional(Text, "worker_id", "reason", "resources_id"),
    *_required(WholeNumber, "fence"),
    *_required(WholeNumber, "arrivals"),  # number of its spans and calls
    *_optional(WholeNumber, "resources_version"),
    *_required(Float, "start_time"),
    *_optional(Float, "end_time", "last_heartbeat_time"),
    *_optional(LargeBinary, "metadata"),
    Index("attempts_held", "attempt_id", **_where(OPEN_ATTEMPT)),
    sqlite_with_rowid=False,
)

spans = _numbered(
    "spans",
    *_required(Text, "rollout_id", "attempt_id", "name"),
    *_required(WholeNumber, "sequence"),
    *_required(WholeNumber, "wire"),  # 1: made by the wire layer
    # 1: a reward that the agent returned; only the runner writes such spans
    Column("returned", WholeNumber, nullable=False, server_default="0"),
    *_required(LargeBinary, "data"),
    Index("spans_attempt", "rollout_id", "attempt_id", "sequence"),
    Index("spans_returned", "rollout_id", "attempt_id", **_where("returned = 1")),
)

calls = _numbered(
    "calls",
    *_required(Text, "call_id", "rollout_id", "attempt_id", "policy", "status"),
    *_required(WholeNumber, "sequence", "choice"),
    *_required(WholeNumber, "arrival"),  # sequence number among the attempt's spans
    *_optional(WholeNumber, "policy_version"),
    *_optional(WholeNumber, "prompt_tokens"),  # of the request, on its first choice
    *_optional(WholeNumber, "completion_tokens"),
    *_optional(WholeNumber, "size"),  # bytes of data
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
    *_required(WholeNumber, "n"),
    sqlite_with_rowid=False,
)

requests = _numbered(
    "requests",
    *_required(Text, "request_id", "method"),
    *_required(Float, "time"),
    *_required(LargeBinary, "answer"),
    Index("requests_id", "request_id", unique=True),
)


def refuse_other(version: int) -> None:
    """Raise :class:`StoreError` for a store whose tables are not these."""
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store has schema version {version}, and this agentlightning reads and writes version "
            f"{SCHEMA_VERSION} only: open it with the agentlightning that made it, or name another store"
        )


def creation(dialect: Dialect) -> list[str]:
    """Return the SQL of all tables and indices."""
    made: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        indices = sorted(table.indexes, key=lambda index: str(index.name))
        made += [CreateTable(table), *map(CreateIndex, indices)]
    return [str(one.compile(dialect=dialect)) for one in made]
