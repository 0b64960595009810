"""The tables: made once by many, refused where they are others or not ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from contract.postgres_server import PostgresServer

pytest.importorskip("agl_postgres.store")
from agentlightning.store.base import StoreError
from agentlightning.store.sql.schema import SCHEMA_VERSION
from agl_postgres import versions
from agl_postgres.connection import Connection, connect
from agl_postgres.settings import settings_of
from agl_postgres.store import PostgresStore


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    opened = connect(settings_of(url))
    yield opened
    opened.close()


def test_many_make_the_tables_once(url: str, connection: Connection) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        mine = connect(settings_of(url))
        try:
            versions.prepare(mine)
        except BaseException as error:
            failed.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and versions.version_of(connection) == SCHEMA_VERSION


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [6, 99])
def test_a_database_of_another_version_is_refused(
    url: str, connection: Connection, version: int, read_only: bool
) -> None:
    versions.prepare(connection)
    connection.execute("UPDATE meta SET value = %s WHERE key = 'schema_version'", (str(version),))
    with pytest.raises(StoreError, match=rf"schema version {version}, .* name another store"):
        PostgresStore(url, read_only=read_only)


def test_tables_of_another_program_are_left_alone(url: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE runs (id int)")
    with pytest.raises(StoreError, match="belongs to another program"):
        PostgresStore(url)
    connection.execute("CREATE TABLE meta (name text)")
    with pytest.raises(StoreError, match="not a store of ours"):
        PostgresStore(url)


def test_another_encoding_is_refused(server: PostgresServer) -> None:
    server.sql("CREATE DATABASE latin ENCODING 'SQL_ASCII' TEMPLATE template0", "postgres")
    with pytest.raises(StoreError, match="has the encoding SQL_ASCII"):
        PostgresStore(server.url(database="latin"))
