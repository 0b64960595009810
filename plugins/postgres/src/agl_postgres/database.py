"""The database of a store: statements run in the transaction of the thread that asks.

Invariant: rows of rollouts are locked in the order of their ids, all that a transaction is known to touch at
once, so that writers wait for each other and seldom in a circle. Where they do, PostgreSQL ends one of them,
and the writer repeats it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Executable, Table, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import Select

from agentlightning.store.base import StoreError
from agentlightning.store.sql import schema
from agentlightning.store.sql.database import Cursor, Database, InJson, Statements, Touched
from agl_postgres.connection import Connection
from agl_postgres.versions import lock_key

_r, _a = schema.rollouts, schema.attempts
_LOCK = select(_r.c.rollout_id).where(InJson(_r.c.rollout_id)).order_by(_r.c.rollout_id).with_for_update()
_OF_ATTEMPTS = select(_a.c.rollout_id).where(InJson(_a.c.attempt_id), text(schema.OPEN_ATTEMPT))
_LOOK_SECONDS = 5.0
"""Seconds after which a waiter looks without a signal: one may be lost with a connection."""
_sql_of = Statements(postgresql.dialect(paramstyle="pyformat"))  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Transaction:
    """What one transaction has done so far."""

    connection: Connection
    read_only: bool = False
    changes: int = 0
    """Rows that it changed."""
    locked: set[str] = field(default_factory=set)
    """Rollouts whose rows it has locked."""
    ordered: set[str] = field(default_factory=set)
    """Tables whose order it keeps."""
    queued: list[str | None] = field(default_factory=list)
    """Runs of the rollouts that it queued."""
    ended: list[str] = field(default_factory=list)
    """Rollouts that it ended."""
    batch: str | None = None
    """How it runs the batch that it is in: ``plain`` or ``savepoints``."""


class PostgresDatabase(Database):
    """Runs statements in the current thread's :class:`Transaction`."""

    look_seconds = _LOOK_SECONDS

    def __init__(self, shown: str, schema_name: str, read_only: bool = False) -> None:
        self.shown, self.schema, self.read_only = shown, schema_name, read_only
        self._here = threading.local()

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that this thread has open."""
        return getattr(self._here, "transaction", None)

    @contextmanager
    def within(self, transaction: Transaction) -> Iterator[Transaction]:
        """Run this thread's statements in ``transaction``."""
        self._here.transaction = transaction
        try:
            yield transaction
        finally:
            self._here.transaction = None

    def _current(self) -> Transaction:
        found = self.transaction
        if found is None:
            raise RuntimeError("a statement of the store ran outside of a transaction")
        return found

    def _run(self, source: Executable, values: dict[str, Any]) -> Cursor:
        text, constants = _sql_of(source)
        current = self._current()
        cursor = current.connection.execute(text.encode(), {**constants, **values})
        if not isinstance(source, Select):
            current.changes += max(0, cursor.rowcount)
        return cursor

    def _run_many(self, source: Executable, rows: list[dict[str, Any]]) -> None:
        if len(rows) == 1:
            self._run(source, rows[0])
            return
        text, constants = _sql_of(source)
        current = self._current()
        with current.connection.cursor() as cursor:
            cursor.executemany(text.encode(), [{**constants, **row} for row in rows])
        current.changes += len(rows)

    def require_writable(self) -> None:
        """Raise :class:`StoreError` if the store was opened read-only."""
        if self.read_only:
            raise StoreError(f"{self.shown} was opened read-only, so nothing can be written")

    def lock(self, touched: Touched) -> None:
        """Lock all that a transaction is known to touch, before it reads anything."""
        ids = set(touched.rollout_ids)
        if touched.attempt_ids:
            rows = self.all(_OF_ATTEMPTS, ids=json.dumps(sorted(touched.attempt_ids)))
            ids.update(row[0] for row in rows)
        self.lock_rollouts(ids)

    def lock_rollouts(self, rollout_ids: Iterable[str]) -> None:
        """Lock the rows of these rollouts until the commit, in the order of their ids."""
        current = self._current()
        new = set(rollout_ids) - current.locked
        if new and not current.read_only:
            self.all(_LOCK, ids=json.dumps(sorted(new)))
            current.locked |= new

    def keep_order(self, table: Table) -> None:
        """Let one transaction at a time insert into this table."""
        current = self._current()
        if table.name not in current.ordered:
            key = lock_key(f"order of {table.name}", self.schema)
            current.connection.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            current.ordered.add(table.name)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the tables with their indices, and 0: the server keeps the free space of its
        tables itself, and does not tell it cheaply.
        """
        found = self._current().connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname = ANY(%s)",
            (self.schema, list(schema.metadata.tables)),
        )
        row = found.fetchone()
        return int(row[0]) if row else 0, 0
