"""What the store asks of a database: statements, one at a time, in transactions that a writer commits before
a caller is answered.

Statements are built with SQLAlchemy Core, compiled at their first use and run on the driver's own cursor, so
that Core costs nothing per row. Invariant: every statement compiles for SQLite and for PostgreSQL; the two
dialects differ only in this module.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Executable,
    FromClause,
    Table,
    Text,
    and_,
    bindparam,
    case,
    delete,
    insert,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

T = TypeVar("T")


# ------------------------------------------------------------------------------------------------- statements
class _Compiler(SQLiteCompiler):
    """Lets ``Select.with_hint(table, "INDEXED BY …", "sqlite")`` name the index that SQLite must use."""

    def get_from_hint_text(self, table: FromClause, text: str | None) -> str | None:
        return text


_SQLITE = sqlite.dialect(paramstyle="named")
_SQLITE.statement_compiler = _Compiler


class Statements:
    """Compiles statements for one dialect, each once."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._compiled: WeakKeyDictionary[Executable, tuple[str, dict[str, Any]]] = WeakKeyDictionary()

    def __call__(self, source: Executable) -> tuple[str, dict[str, Any]]:
        """Return a statement's text with named parameters, and the values of its constant parameters."""
        found = self._compiled.get(source)
        if found is None:
            compiled = compile_for(self._dialect, source)
            required = {name for name, bind in compiled.binds.items() if bind.required}
            constants = {name: value for name, value in compiled.params.items() if name not in required}
            found = self._compiled[source] = (str(compiled), constants)
        return found


statement_of = Statements(_SQLITE)
"""For SQLite, with ``:name`` parameters."""


def compile_for(dialect: Dialect, source: Any) -> SQLCompiler:
    """Compile a statement for any dialect."""
    compiled = source.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    assert isinstance(compiled, SQLCompiler)
    return compiled


def given(*columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """Compare each column with the parameter of the same name."""
    return and_(*(column == bindparam(column.key) for column in columns))


@cache
def insert_sql(table: Table, columns: tuple[str, ...]) -> Executable:
    """Insert rows of these columns."""
    return insert(table).values({name: bindparam(name) for name in columns})


@cache
def update_sql(table: Table, key: tuple[str, ...], columns: tuple[str, ...]) -> Executable:
    """Set these columns of the rows with this key."""
    change = update(table).where(given(*(table.c[name] for name in key)))
    return change.values({name: bindparam(name) for name in columns})


@cache
def delete_sql(table: Table, key: tuple[str, ...]) -> Executable:
    """Delete the rows with this key."""
    return delete(table).where(given(*(table.c[name] for name in key)))


def least(a: Any, b: Any) -> ColumnElement[Any]:
    """Select the lesser of two values in one row; NULL if ``a`` is NULL."""
    return case((a > b, b), else_=a)


class InJson(ColumnElement[bool]):
    """Tests whether ``column`` is in the JSON list of texts, of any length, that is bound as ``:<name>``."""

    inherit_cache = False

    def __init__(self, column: ColumnElement[Any], name: str = "ids") -> None:
        self.column, self.texts = column, bindparam(name, type_=Text())


@compiles(InJson, "sqlite")
def _in_json_each(element: InJson, compiler: SQLCompiler, **options: Any) -> str:
    column, texts = (compiler.process(part, **options) for part in (element.column, element.texts))
    return f"{column} IN (SELECT value FROM json_each({texts}))"


@compiles(InJson, "postgresql")
def _in_jsonb(element: InJson, compiler: SQLCompiler, **options: Any) -> str:
    column, texts = (compiler.process(part, **options) for part in (element.column, element.texts))
    return f"{column} IN (SELECT jsonb_array_elements_text(CAST({texts} AS JSONB)))"


# ------------------------------------------------------------------------------------------------- a database
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
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the tables, and those of free pages, which are used before it grows."""

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


# ----------------------------------------------------------------------------------------------- transactions
_in_batch: ContextVar[bool] = ContextVar("in_batch", default=False)


@dataclass(frozen=True, slots=True)
class Touched:
    """What a write is going to change, as far as its parameters tell."""

    rollout_ids: frozenset[str] = frozenset()
    attempt_ids: frozenset[str] = frozenset()

    @classmethod
    def by(cls, parameters: Mapping[str, Any]) -> Touched:
        """Return what a method of the store with these parameters is going to change."""
        rollouts, attempts = set(parameters.get("rollout_ids") or ()), parameters.get("attempt_ids") or ()
        for name in ("spans", "returned", "calls"):
            rollouts.update(one.rollout_id for one in parameters.get(name) or ())
        rollouts.update(rollout_id for rollout_id, _ in parameters.get("attempts") or ())
        if isinstance(known := parameters.get("rollout_id"), str):
            rollouts.add(known)
        return cls(frozenset(rollouts), frozenset(attempts))

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.rollout_ids | other.rollout_ids, self.attempt_ids | other.attempt_ids)


def nothing() -> Touched:
    """Return what a write touches that names no rollout."""
    return Touched()


async def pause() -> None:
    """Let other requests go on. Within a batch, which may not wait, this does nothing."""
    if not _in_batch.get():
        await asyncio.sleep(0)


class PartialWrite(Exception):
    """A call of a batch failed after it had changed something."""


class Writer(Protocol):
    """Runs reads and writes of a store, each in a transaction.

    Work is a function of the tables, safe to run twice: a transaction that fails with others in it is run
    again without the one that failed.
    """

    closed: bool
    """Whether the store was closed."""

    async def write(self, work: Callable[[], T], touched: Callable[[], Touched] = nothing) -> T:
        """Run ``work`` in a transaction; return its result after the commit. A database with many writers
        locks what is ``touched`` first.
        """

    async def read(self, work: Callable[[], T]) -> T:
        """Run queries that see one state of the tables; return their result."""

    def write_batch(
        self, coroutines: Sequence[Callable[[], Coroutine[Any, Any, Any]]], savepoints: bool
    ) -> list[Any]:
        """Run coroutines in order, within one write. Return a result or an exception each.

        No coroutine may wait. If one fails after a change, :class:`PartialWrite` rolls all of them back. The
        caller runs them again with ``savepoints``, one for each coroutine, which cost too much for the usual
        case.
        """

    async def on_writer_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine on the event loop that waits for this store's signals."""


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine of a batch, which may not wait; return its result or its exception."""
    within = _in_batch.set(True)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    except PartialWrite:
        raise
    except Exception as error:
        return error
    finally:
        _in_batch.reset(within)
    coroutine.close()
    raise RuntimeError("a part of a batch waited")
