"""SQL statements: built with SQLAlchemy Core, compiled once, run on the driver's own cursor.

Statements of a module are compiled when it is imported; inserts, updates and deletes of whole columns when
they are first used. So Core costs nothing per row. Invariant: every statement compiles for SQLite and for
PostgreSQL; the two dialects differ only in this module.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Executable,
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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

_SQLITE = sqlite.dialect(paramstyle="named")
Names = tuple[str, ...]


class Statement(NamedTuple):
    """A compiled statement: text with ``:name`` parameters, and the values of its constant parameters."""

    text: str
    constants: dict[str, Any]
    source: Executable

    def indexed_by(self, table: str, index: str) -> Statement:
        """Return the statement with an index that SQLite must use."""
        assert f"FROM {table}" in self.text
        return self._replace(text=self.text.replace(f"FROM {table}", f"FROM {table} INDEXED BY {index}"))


def compile_sql(source: Executable) -> Statement:
    """Compile a statement for SQLite."""
    compiled = compile_for(_SQLITE, source)
    required = {name for name, bind in compiled.binds.items() if bind.required}
    constants = {name: value for name, value in compiled.params.items() if name not in required}
    return Statement(str(compiled), constants, source)


def compile_for(dialect: Dialect, source: Executable) -> SQLCompiler:
    """Compile a statement for any dialect."""
    compiled = source.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})  # type: ignore[attr-defined]
    assert isinstance(compiled, SQLCompiler)
    return compiled


def given(*columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """Each column equals the parameter of the same name."""
    return and_(*(column == bindparam(column.key) for column in columns))


@cache
def insert_sql(table: Table, columns: Names) -> Statement:
    """Insert rows of these columns."""
    return compile_sql(insert(table).values({name: bindparam(name) for name in columns}))


@cache
def update_sql(table: Table, key: Names, columns: Names) -> Statement:
    """Set these columns of the rows with this key."""
    change = update(table).where(given(*(table.c[name] for name in key)))
    return compile_sql(change.values({name: bindparam(name) for name in columns}))


@cache
def delete_sql(table: Table, key: Names) -> Statement:
    """Delete the rows with this key."""
    return compile_sql(delete(table).where(given(*(table.c[name] for name in key))))


def least(a: Any, b: Any) -> ColumnElement[Any]:
    """The lesser of two values in one row; NULL if ``a`` is NULL."""
    return case((a > b, b), else_=a)


class InJson(ColumnElement[bool]):
    """Whether ``column`` is in a JSON list of texts of any length, which is bound as ``:<name>``."""

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
