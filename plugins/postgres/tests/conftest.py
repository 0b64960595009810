"""A PostgreSQL server for all tests of this folder, and a store in a schema of its own for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from contract.postgres_server import PostgresServer, binaries, running
from contract.storing import Clock

if TYPE_CHECKING:
    from agl_postgres.store import PostgresStore

NEVER = 1e6
"""Seconds: the leader looks only when it is told, so that tests choose the moment."""


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip("agl_postgres.store", reason="`make test-postgres` has psycopg")
    if binaries() is None:
        pytest.skip("no PostgreSQL server: `make test-postgres` brings one")
    yield from running()


@pytest.fixture
def server_of_its_own() -> Iterator[PostgresServer]:
    """A server to kill, whose commits reach the disk."""
    if binaries() is None:
        pytest.skip("no PostgreSQL server: `make test-postgres` brings one")
    yield from running(durable=True)


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.url(server.schema())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def postgres(url: str, clock: Clock) -> AsyncIterator[PostgresStore]:
    from agl_postgres.store import PostgresStore

    store = PostgresStore(url, clock=clock, look_seconds=NEVER)
    yield store
    await store.close()
