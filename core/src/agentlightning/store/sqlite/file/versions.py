"""The schema version of a file: made, or refused."""

from __future__ import annotations

import re
import sqlite3
from functools import cache

from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from agentlightning.store.base import StoreError
from agentlightning.store.sql.schema import SCHEMA_VERSION, creation, refuse_other


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
    if not re.fullmatch("[1-9][0-9]{0,8}", str(row[0])):
        raise StoreError(
            f"this SQLite file has the schema_version {row[0]!a:.40}: not a store of ours, or damaged"
        )
    return int(row[0])


def create(connection: sqlite3.Connection) -> None:
    """Make all tables and indices, inside the caller's transaction."""
    for statement in _statements():
        connection.execute(statement)
    connection.execute("INSERT INTO meta (key, value) VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))


@cache
def _statements() -> tuple[str, ...]:
    """Return the SQL of all tables and indices. To compile it takes longer than to run it."""
    return tuple(creation(sqlite_dialect()))


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty file. Raise :class:`StoreError` for a file of another schema version."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)
        if version is None:
            create(connection)
        else:
            refuse_other(version)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
