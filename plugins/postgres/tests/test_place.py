"""The database as a place: by the hook, by the environment, and with no password in anything that is said."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from contract.postgres_server import PASSWORD, PostgresServer

from agentlightning import child_environment
from agentlightning.plugins.manager import load
from agentlightning.plugins.stores import open_store
from agentlightning.store.base import StoreError

pytest.importorskip("agl_postgres.store")
from agl_postgres.connection import connect
from agl_postgres.settings import settings_of
from agl_postgres.store import PostgresStore


@pytest.mark.plugins
async def test_agl_storage_names_a_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STORAGE", url)
    load.cache_clear()
    store = open_store()
    assert isinstance(store, PostgresStore)
    made = await store.enqueue_rollout(input=1)
    await store.close()
    reader = open_store(read_only=True)
    assert (await reader.get_rollout_by_id(made.rollout_id)).input == 1
    with pytest.raises(StoreError, match="read-only"):
        await reader.enqueue_rollout(2)
    await reader.close()


@pytest.mark.slow
async def test_a_store_says_no_password(url: str, server: PostgresServer) -> None:
    store = PostgresStore(url)
    assert PASSWORD in url and PASSWORD not in f"{store!r} {store.settings!r} {store.db.shown}"
    await store.close()
    wrong = (
        server.url(password="not-the-password"),
        server.url(database="nowhere"),
        "postgresql://agl:sec/ret@nowhere:port/agl",
        "postgresql://agl:s%ZZcret@127.0.0.1:1/agl",
        "postgresql://agl@127.0.0.1:x/agl?password=sec/ret",
    )
    for place in wrong:
        with pytest.raises(StoreError) as refused:
            PostgresStore(place)
        said, error = "", refused.value
        while error is not None:
            said, error = said + repr(error), error.__cause__ or error.__context__  # type: ignore[assignment]
        assert not any(word in said for word in (PASSWORD, "not-the-password", "sec/ret", "ZZcret"))


async def test_processes_of_agents_do_not_inherit_the_password(
    url: str, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_environment, "_taken", {})
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    bare = url.replace(f":{PASSWORD}@", "@")
    settings_of(url)
    assert child_environment.child_environment(os.environ)["PGPASSWORD"] == PASSWORD  # it is not the store's
    store = PostgresStore(bare)
    assert "PGPASSWORD" not in child_environment.child_environment(os.environ)
    named = child_environment.child_environment(os.environ, named=["PGPASSWORD"])
    assert named["PGPASSWORD"] == os.environ["PGPASSWORD"] == PASSWORD
    inherited = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert PASSWORD not in inherited
    with connect(store.settings) as again:  # libpq does not find the variable any more
        assert again.execute("SELECT 1").fetchone() == (1,)
    assert PASSWORD not in f"{store!r} {store.settings!r}"
    await store.close()


def test_what_a_url_may_ask_for() -> None:
    found = settings_of("postgresql://agl@db/agl?agl_writers=4&sslmode=require&agl_readers=1")
    assert (found.writers, found.readers) == (4, 1)
    assert found.conninfo == "postgresql://agl@db/agl?sslmode=require"
    for wrong, why in (("agl_writer=1", "no option agl_writer"), ("agl_readers=0", "whole number from 1")):
        with pytest.raises(StoreError, match=why):
            settings_of(f"postgresql://agl@db/agl?{wrong}")


async def test_a_reader_makes_no_tables(url: str, server: PostgresServer) -> None:
    with pytest.raises(StoreError, match="holds no store yet"):
        PostgresStore(url, read_only=True)


def test_a_missing_plugin_is_told_with_the_line_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"pip install -c constraints.txt ./core ./plugins/postgres"):
        open_store("postgresql://agl@db/agl")
