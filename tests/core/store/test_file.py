"""The file: where it lies, who owns it, versions, damage, and what survives kill -9."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from marks import sampled

from agentlightning.plugins.stores import open_store
from agentlightning.store import SQLiteStore, StoreError

WRITER = """
import asyncio, sys
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call

async def lane(store, n):
    for i in range(10**9):
        made = await store.enqueue_rollout({"lane": n, "i": i}, run_id=f"r{n}")
        lease = await store.dequeue_rollout("w", run_id=f"r{n}")
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        call = Call(
            call_id=f"ca-{n}-{i}", rollout_id=ids[0], attempt_id=ids[1], prompt_ids=[1], response_ids=[2]
        )
        await store.add_calls([call])
        print("call", call.call_id, flush=True)
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED)
        print("done", made.rollout_id, flush=True)

async def main():
    store = SQLiteStore(sys.argv[1])
    await asyncio.gather(*(lane(store, n) for n in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", sampled([1, 2, 3], 0))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    path, rng = tmp_path / "s.sqlite", random.Random(seed)
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline().split() for _ in range(rng.randrange(50, 400))]
    os.kill(child.pid, signal.SIGKILL)
    assert all(lines), "the child ended before it was killed"
    lines += [line.split() for line in child.stdout.read().splitlines() if len(line.split()) == 2]
    child.wait()
    child.stdout.close()

    async def check() -> None:
        store = SQLiteStore(path)
        ended = {r.rollout_id for r in await store.wait_for_rollouts([i for k, i in lines if k == "done"], 0)}
        assert ended == {i for k, i in lines if k == "done"}
        rows = store.db.connection.execute("SELECT call_id, count(*) FROM calls GROUP BY call_id").fetchall()
        assert {i for k, i in lines if k == "call"} <= {row[0] for row in rows}
        assert all(row[1] == 1 for row in rows)
        assert store.db.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        await store.close()

    asyncio.run(check())


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(out, 1)
        os._exit(0)
    asyncio.run(store.close())
    asyncio.run(SQLiteStore(tmp_path / "s.sqlite").close())
    os.write(into, b"x")
    os.waitpid(child, 0)
    os.close(out)
    os.close(into)


def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "new" / "s.sqlite")
    asyncio.run(store.enqueue_rollout(1))
    modes = {
        p.name: p.stat().st_mode & 0o077 for p in (tmp_path / "new").glob("s.sqlite*") if p.suffix != ".lock"
    }
    assert set(modes.values()) == {0} and "s.sqlite" in modes
    asyncio.run(store.close())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match=r"s\.sqlite cannot be opened.*not a database"):
        SQLiteStore(path)
    path.unlink()
    asyncio.run(SQLiteStore(path).close())  # the lock was let go


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        SQLiteStore(path)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", ["6", "99"])
def test_a_file_of_another_version_is_refused(tmp_path: Path, version: str, read_only: bool) -> None:
    path = tmp_path / "s.sqlite"
    asyncio.run(SQLiteStore(path).close())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    connection.close()
    with pytest.raises(StoreError, match=rf"schema version {version}, .* name another store"):
        open_store(path, read_only=read_only)


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STORAGE", str(tmp_path / "env"))
    expected = {
        None: tmp_path / "env" / "store.sqlite",
        str(tmp_path / "folder"): tmp_path / "folder" / "store.sqlite",
        f"sqlite:///{tmp_path}/f.db": tmp_path / "f.db",
        str(tmp_path / "g.sqlite"): tmp_path / "g.sqlite",
    }
    for place, path in expected.items():
        store = open_store(place)
        assert isinstance(store, SQLiteStore) and store.db.path == path and path.exists()
        asyncio.run(store.close())
    monkeypatch.delenv("AGL_STORAGE")
    store = SQLiteStore()
    assert store.db.path == Path.home() / ".agent-lightning" / "store.sqlite"
    asyncio.run(store.close())
    with pytest.raises(StoreError, match=r"registered for redis://.*sqlite://"):
        open_store("redis://x")
    with pytest.raises(ValueError, match="NORMAL or FULL"):
        SQLiteStore(tmp_path / "x.sqlite", synchronous="OFF")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["deleted", "replaced"])
async def test_a_file_that_was_deleted_is_noticed(tmp_path: Path, what: str) -> None:
    path = tmp_path / "s.sqlite"
    store = SQLiteStore(path)
    before = await store.enqueue_rollout("before")
    path.rename(tmp_path / "moved.sqlite")
    if what == "replaced":
        path.write_bytes(b"another file")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"s\.sqlite was deleted or replaced .* nothing more is stored"):
            await store.enqueue_rollout("lost")
    path.unlink(missing_ok=True)
    (tmp_path / "moved.sqlite").rename(path)
    after = await store.enqueue_rollout("after")
    assert [r.rollout_id for r in await store.query_rollouts()] == [before.rollout_id, after.rollout_id]
    await store.close()


@pytest.mark.parametrize("version", ["abc", "", "-3", "0", "1.5", "9" * 5_000])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_version_that_is_none_is_refused_and_named(tmp_path: Path, version: str, read_only: bool) -> None:
    file = tmp_path / "store.sqlite"
    asyncio.run(SQLiteStore(file).close())
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    connection.close()
    with pytest.raises(StoreError, match=r"schema_version|newer"):
        SQLiteStore(file, read_only=read_only)
