"""SQL statements: built with SQLAlchemy Core, compiled at their first use, run on the driver's own cursor.

So Core costs nothing per row. Invariant: every statement compiles for SQLite and for PostgreSQL; the two
dialects differ only in this module.
"""

from __future__ import annotations

from functools import cache
from typing import Any
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
