"""The tables: made once by many, migrated in one transaction, refused where they are newer or not ours."""

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


def test_every_version_has_a_migration() -> None:
    assert versions.FIRST_VERSION + len(versions.MIGRATIONS) == SCHEMA_VERSION


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


def test_a_migration_is_done_once_and_as_a_whole(connection: Connection) -> None:
    versions.prepare(connection)
    done: list[int] = []

    def add(connection: Connection) -> None:
        connection.execute("ALTER TABLE meta ADD COLUMN more TEXT")
        done.append(1)

    def fail(_: Connection) -> None:
        raise RuntimeError("in the middle")

    first = SCHEMA_VERSION
    with pytest.raises(RuntimeError):
        versions.prepare(connection, [add, fail], first)
    assert versions.version_of(connection) == SCHEMA_VERSION and done == [1]
    for _ in range(2):
        versions.prepare(connection, [add], first)
    assert versions.version_of(connection) == SCHEMA_VERSION + 1 and done == [1, 1]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_database_is_refused_by_name(url: str, connection: Connection, read_only: bool) -> None:
    versions.prepare(connection)
    connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    with pytest.raises(StoreError, match=r"schema version 99.*upgrade agentlightning"):
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
