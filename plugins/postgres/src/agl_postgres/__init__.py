"""The store in PostgreSQL: many processes, on any number of machines, write one database at once.

:class:`~agl_postgres.store.PostgresStore` has the tables, statements and rules of
:mod:`agentlightning.store.sql`; this distribution adds connections, locks, commits and signals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_postgres.store import PostgresStore as PostgresStore


def __getattr__(name: str) -> Any:
    if name != "PostgresStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_postgres.store import PostgresStore

    return PostgresStore
