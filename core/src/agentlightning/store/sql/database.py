"""What the store asks of a database: one statement at a time, inside a transaction that a writer opens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol, cast

from sqlalchemy import Executable, Table

from agentlightning.store.sql.statements import delete_sql, insert_sql, update_sql


class Cursor(Protocol):
    """The part of a DB-API cursor that the store uses."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Database(ABC):
    """Runs SQLAlchemy Core's statements on the database's own driver."""

    read_only = False
    look_seconds: float | None = None
    """Seconds after which a waiter looks without a signal; ``None``: no signal is ever missing."""

    @abstractmethod
    def _run(self, source: Executable, values: dict[str, Any]) -> Cursor:
        """Run a statement with these parameters."""

    @abstractmethod
    def _run_many(self, source: Executable, rows: list[dict[str, Any]]) -> None:
        """Run a statement once for each row."""

    @abstractmethod
    def require_writable(self) -> None:
        """Raise ``StoreError`` if the store was opened read-only."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Return the size of the tables in bytes."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the bytes of free pages, which are used before the database grows."""

    @abstractmethod
    def lock_rollouts(self, rollout_ids: Iterable[str]) -> None:
        """Wait until no other transaction writes these rollouts, and keep others out until the commit.

        Every write of a rollout, its attempts, calls and spans calls this before it reads them. Does nothing
        where one process writes at a time.
        """

    @abstractmethod
    def keep_order(self, table: Table) -> None:
        """Make rows of a table visible in the order of their numbers: the transactions that insert into it
        commit one after the other, so that a reader's cursor passes no row that appears later. Does nothing
        where one process writes at a time.
        """

    def execute(self, source: Executable, **values: Any) -> int:
        """Run a write; return the number of rows that it changed."""
        return self._run(source, values).rowcount

    def insert(self, table: Table, *rows: dict[str, Any]) -> None:
        """Insert rows, which have the same columns. The database sets the other columns, and ``seq``."""
        if rows:
            self._run_many(insert_sql(table, tuple(rows[0])), list(rows))

    def update(self, table: Table, key: dict[str, Any], **values: Any) -> int:
        """Set columns of the rows whose columns equal ``key``; return the number of rows."""
        return self.execute(update_sql(table, tuple(key), tuple(values)), **key, **values)

    def delete(self, table: Table, **key: Any) -> int:
        """Delete the rows whose columns equal ``key``; return the number of rows."""
        return self.execute(delete_sql(table, tuple(key)), **key)

    def one(self, source: Executable, **values: Any) -> tuple[Any, ...] | None:
        """Return the first row, or ``None``."""
        return cast("tuple[Any, ...] | None", self._run(source, values).fetchone())

    def value(self, source: Executable, **values: Any) -> Any:
        """Return the first column of the first row, or ``None``."""
        row = self.one(source, **values)
        return None if row is None else row[0]

    def all(self, source: Executable, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return self._run(source, values).fetchall()
