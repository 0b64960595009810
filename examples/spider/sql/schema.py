"""A database described for a prompt: its tables as CREATE TABLE lines, then rows of each while there is room.

Invariant: the text keeps to its budget and is never cut inside a line. What goes first is what can be spared:
sample rows, then types and keys, then whole tables, whose names are still listed in a last line.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from spider.sql.execution import Row, Value

VALUE_CHARS = 40
"""Characters of a value that are shown."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = frozenset(
    [
        "add",
        "all",
        "alter",
        "and",
        "as",
        "between",
        "by",
        "case",
        "check",
        "commit",
        "create",
        "default",
        "delete",
        "desc",
        "distinct",
        "drop",
        "else",
        "escape",
        "except",
        "exists",
        "foreign",
        "from",
        "group",
        "having",
        "if",
        "in",
        "index",
        "insert",
        "intersect",
        "into",
        "is",
        "isnull",
        "join",
        "limit",
        "not",
        "notnull",
        "null",
        "on",
        "or",
        "order",
        "primary",
        "references",
        "rollback",
        "select",
        "set",
        "table",
        "then",
        "to",
        "transaction",
        "union",
        "unique",
        "update",
        "using",
        "values",
        "when",
        "where",
    ]
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it was declared; ``type`` may be empty."""

    name: str
    type: str
    key: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its first rows."""

    name: str
    columns: tuple[Column, ...]
    links: tuple[tuple[str, str, str], ...]
    """Foreign keys: column, table, column."""
    rows: tuple[Row, ...]

    def line(self, brief: bool = False) -> str:
        """The CREATE TABLE line; ``brief``: names only."""
        if brief:
            return f"{quoted(self.name)} ({', '.join(quoted(c.name) for c in self.columns)})"
        parts = [
            " ".join(filter(None, (quoted(c.name), c.type, "PRIMARY KEY" if c.key else "")))
            for c in self.columns
        ]
        parts += [
            f"FOREIGN KEY ({quoted(own)}) REFERENCES {quoted(table)} ({quoted(other)})"
            for own, table, other in self.links
        ]
        return f"CREATE TABLE {quoted(self.name)} ({', '.join(parts)})"


def describe(database: Path, chars: int = 2_048, sample_rows: int = 3) -> str:
    """The schema in at most ``chars`` characters, with up to ``sample_rows`` rows of each table."""
    tables = read(database)
    lines = [table.line() for table in tables]
    if _length(lines) > chars:
        return _brief(tables, chars)
    samples: list[list[str]] = [[] for _ in tables]
    for number in range(sample_rows):
        for table, sample in zip(tables, samples, strict=True):
            if number >= len(table.rows):
                continue
            sample.append(f"-- {', '.join(shown(value) for value in table.rows[number])}")
            if _length(lines) + sum(_length(s) + 1 for s in samples if s) > chars:
                sample.pop()
    return "\n".join("\n".join([line, *sample]) for line, sample in zip(lines, samples, strict=True))


def _brief(tables: tuple[Table, ...], chars: int) -> str:
    """Names of tables and columns; where these do not fit, of the first tables, and the names of the rest."""
    for kept in range(len(tables), -1, -1):
        lines = [table.line(brief=True) for table in tables[:kept]]
        if rest := ", ".join(quoted(table.name) for table in tables[kept:]):
            lines.append(f"-- columns left out for want of room: {rest}")
        if _length(lines) <= chars:
            return "\n".join(lines)
    return f"-- {len(tables)} tables, which do not fit into {chars} characters"[:chars]


def _length(lines: list[str]) -> int:
    return len("\n".join(lines))


@lru_cache(maxsize=256)
def read(database: Path) -> tuple[Table, ...]:
    """The tables of a database in the order of their making; it is read once and then remembered."""
    if not database.is_file():
        raise FileNotFoundError(f"there is no database {database}")
    with closing(
        sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            "ORDER BY rowid"
        ).fetchall()
        return tuple(_table(connection, name) for (name,) in names)


def _table(connection: sqlite3.Connection, name: str) -> Table:
    mark = '"' + name.replace('"', '""') + '"'
    columns = connection.execute(f"PRAGMA table_info({mark})").fetchall()
    keys = [column for column in columns if column[5]]
    links = connection.execute(f"PRAGMA foreign_key_list({mark})").fetchall()
    return Table(
        name=name,
        columns=tuple(Column(c[1], c[2], len(keys) == 1 and bool(c[5])) for c in columns),
        links=tuple((link[3], link[2], link[4] or link[3]) for link in reversed(links)),
        rows=tuple(connection.execute(f"SELECT * FROM {mark} LIMIT 5").fetchall()),
    )


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    if _PLAIN_NAME.match(name) and name.lower() not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def shown(value: Value, chars: int = VALUE_CHARS) -> str:
    """A value in a prompt: like a literal, on one line, not longer than ``chars``."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if not isinstance(value, str):
        return repr(value)
    text = " ".join(value.split())
    return f"'{text if len(text) <= chars else text[: chars - 1] + '…'}'"
