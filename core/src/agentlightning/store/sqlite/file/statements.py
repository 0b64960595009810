"""Statements of SQLAlchemy Core, compiled once, when their module is imported.

They run on the driver's own cursor, so Core costs nothing per row. Invariant: every statement compiles for
SQLite and for PostgreSQL; SQL that the two spell differently is in this module only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Executable,
    Float,
    Table,
    Text,
    and_,
    bindparam,
    insert,
    literal,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

_SQLITE = sqlite.dialect(paramstyle="named")
_INSERT: Mapping[str, Callable[[Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
CHUNK = 500
"""Ids bound in one ``IN (…)``."""


class Upsert(NamedTuple):
    """An insert, or an update of the row with the same key."""

    table: Table
    key: Sequence[str]
    changes: Callable[[Any], dict[str, Any]]
    """Columns of the new row → the columns to update, and their values."""


class Statement(NamedTuple):
    """A compiled statement: text with ``:name`` parameters, and the values of those that are constant."""

    text: str
    values: dict[str, Any]
    source: Executable | Upsert
    columns: Sequence[str]

    def bind_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of all parameters."""
        return {**self.values, **values} if self.values else values

    def indexed_by(self, table: str, index: str) -> Statement:
        """The statement with an index that SQLite must use."""
        assert f"FROM {table}" in self.text
        return self._replace(text=self.text.replace(f"FROM {table}", f"FROM {table} INDEXED BY {index}"))


def compile_sql(source: Executable | Upsert, *columns: str) -> Statement:
    """Compile a statement for SQLite. ``columns``: those that an insert or update binds by name."""
    compiled = compile_for(_SQLITE, source, columns)
    bound_later = {name for name, bind in compiled.binds.items() if bind.required}
    values = {name: value for name, value in compiled.params.items() if name not in bound_later}
    return Statement(str(compiled), values, source, columns)


def compile_for(dialect: Dialect, source: Executable | Upsert, columns: Sequence[str] = ()) -> SQLCompiler:
    """Compile a statement for any dialect of :data:`_INSERT`."""
    statement: Any = source
    if isinstance(source, Upsert):
        row = _INSERT[dialect.name](source.table)
        statement = row.on_conflict_do_update(index_elements=source.key, set_=source.changes(row.excluded))
    compiled = statement.compile(
        dialect=dialect, column_keys=list(columns) or None, compile_kwargs={"render_postcompile": True}
    )
    assert isinstance(compiled, SQLCompiler)
    return compiled


def given(*columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """Each column has the value that is bound by its name."""
    return and_(*(column == bindparam(column.key) for column in columns))


def insert_sql(table: Table) -> Statement:
    """The insert of a whole row; the database numbers it, where there is a ``seq``."""
    return compile_sql(insert(table), *(c.name for c in table.c if c.name != "seq"))


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ``ids`` into pieces that fit one statement."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


class InJson(ColumnElement[bool]):
    """Whether ``column`` is one of ``ids``, or else of the JSON list that is bound as ``:ids``."""

    inherit_cache = False

    def __init__(self, column: ColumnElement[Any], ids: Sequence[str] | None = None) -> None:
        self.column = column
        self.ids = bindparam("ids", type_=Text()) if ids is None else literal(json.dumps(list(ids)), Text())


@compiles(InJson, "sqlite")
def _in_json_each(element: InJson, compiler: SQLCompiler, **options: Any) -> str:
    column, ids = compiler.process(element.column, **options), compiler.process(element.ids, **options)
    return f"{column} IN (SELECT value FROM json_each({ids}))"


@compiles(InJson, "postgresql")
def _in_jsonb(element: InJson, compiler: SQLCompiler, **options: Any) -> str:
    column, ids = compiler.process(element.column, **options), compiler.process(element.ids, **options)
    return f"{column} IN (SELECT jsonb_array_elements_text(CAST({ids} AS JSONB)))"


class least(GenericFunction[float]):
    """The least of several values in one row."""

    type, inherit_cache = Float(), True


class greatest(GenericFunction[float]):
    """The greatest of several values in one row."""

    type, inherit_cache = Float(), True


@compiles(least, "sqlite")
@compiles(greatest, "sqlite")
def _of_row(element: least | greatest, compiler: SQLCompiler, **options: Any) -> str:
    name = "min" if isinstance(element, least) else "max"
    return f"{name}({compiler.process(element.clauses, **options)})"
