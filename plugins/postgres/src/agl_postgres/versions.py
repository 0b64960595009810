"""The schema version of a database: made, or refused, under a lock of one process at a time.

Tables are in the first schema of the connection's ``search_path``, which the URL may choose
(``?options=-csearch_path%3Dname``).
"""

from __future__ import annotations

import hashlib

from psycopg import errors
from sqlalchemy.dialects import postgresql

from agentlightning.store.base import StoreError
from agentlightning.store.sql.schema import SCHEMA_VERSION, creation, metadata, refuse_other
from agl_postgres.connection import Connection


def lock_key(purpose: str, schema: str) -> int:
    """Return the key of an advisory lock, which holds in one database."""
    digest = hashlib.sha256(f"agentlightning/{purpose}/{schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def schema_of(connection: Connection) -> str:
    """Return the PostgreSQL schema in which the connection finds and makes tables."""
    row = connection.execute("SELECT current_schema()").fetchone()
    if row is None or row[0] is None:
        raise StoreError("the search_path names no schema that exists: CREATE SCHEMA first")
    return str(row[0])


def version_of(connection: Connection) -> int | None:
    """Return the schema version; ``None``: there are no tables of ours yet."""
    schema = schema_of(connection)
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)
    ).fetchall()
    names = {row[0] for row in found}
    if "meta" not in names:
        if strangers := names & set(metadata.tables):
            raise StoreError(
                f"schema {schema!r} belongs to another program: it has a table {min(strangers)!r}, but no "
                "table 'meta'. Use a database of its own"
            )
        return None
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    except errors.UndefinedColumn:
        row = None
    if row is None:
        raise StoreError(
            f"schema {schema!r} has a table 'meta' without a schema_version: not a store of ours"
        )
    return int(row[0])


def prepare(connection: Connection) -> None:
    """Make the tables where there are none. Raise :class:`StoreError` for those of another version."""
    version = version_of(connection)
    if version is None:
        with connection.transaction():
            key = lock_key("schema", schema_of(connection))
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            version = version_of(connection)  # another process may have made them meanwhile
            if version is None:
                _create(connection)
                return
    refuse_other(version)


def require_current(connection: Connection) -> None:
    """Raise :class:`StoreError` unless a reader can read this database."""
    version = version_of(connection)
    if version is None:
        raise StoreError("the database holds no store yet")
    refuse_other(version)


def _create(connection: Connection) -> None:
    """Make all tables and indices, inside the caller's transaction."""
    for statement in creation(postgresql.dialect()):  # type: ignore[no-untyped-call]
        connection.execute(statement.encode())
    connection.execute("INSERT INTO meta (key, value) VALUES ('schema_version', %s)", (str(SCHEMA_VERSION),))
