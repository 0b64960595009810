"""One process writes a file; any number read it, also in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentlightning.plugins.stores import open_store
from agentlightning.store import SQLiteStore, StoreError
from agentlightning.store.sqlite.lock import FileLock, Locked, LockHolder, holder_of
from agentlightning.types import AttemptStatus

WRITER = """
import asyncio, sys
from agentlightning.plugins.stores import open_store
from agentlightning.types import AttemptStatus

async def main():
    store = open_store(sys.argv[1])
    lease = await store.start_rollout("task")
    print(lease.rollout.rollout_id, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    print("ended", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.close()

asyncio.run(main())
"""
READER = """
import asyncio, sys
from agentlightning.plugins.stores import open_store

async def main():
    store = open_store(sys.argv[1], read_only=True)
    print([rollout.input for rollout in await store.query_rollouts()])
    await store.close()

asyncio.run(main())
"""
HOLD_SHARED = """
import fcntl, sys, time
with open(sys.argv[1]) as file:
    fcntl.lockf(file, fcntl.LOCK_SH)
    print("locked", flush=True)
    time.sleep(0.02)
"""


def python(code: str, path: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=pipe, stdout=pipe, text=True)


@contextmanager
def writer(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that writes ``path``, and the rollout that it has under way."""
    process = python(WRITER, path)
    assert process.stdout is not None
    with process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


async def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with writer(path) as (process, rollout_id):
        assert holder_of(path) == LockHolder(pid=process.pid)
        with pytest.raises(
            Locked,
            match=rf"in use: process {process.pid} writes it\. To share it, end that process, start "
            r"`agl store .*`, and give every process its URL\. To read it meanwhile: open_store\(.*read_only",
        ):
            open_store(path)
        store = open_store(path, read_only=True)
        assert (await store.get_rollout_by_id(rollout_id)).status == "preparing"
        assert await store.wait_for_rollouts([rollout_id], timeout=0.0) == []
        waiting = asyncio.create_task(store.wait_for_rollouts([rollout_id], timeout=300.0))
        tell(process)
        assert [rollout.status for rollout in await waiting] == ["succeeded"]
        tell(process)
        await asyncio.to_thread(process.wait)
        assert [rollout.status for rollout in await store.query_rollouts()] == ["succeeded"]
        await store.close()
    assert holder_of(path) is None
    await SQLiteStore(path).close()


async def test_nothing_is_written_through_a_reader(tmp_path: Path) -> None:
    with writer(tmp_path / "s.sqlite") as (_, rollout_id):
        store = open_store(f"sqlite:///{tmp_path}/s.sqlite", read_only=True)
        assert isinstance(store, SQLiteStore)
        with pytest.raises(StoreError, match=r"opened read-only, so nothing can be written\. .* the URL"):
            await store.enqueue_rollout(1)
        with pytest.raises(StoreError, match="opened read-only"):
            await store.dequeue_rollout("w", wait=60.0)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            store.db.connection.execute("DELETE FROM rollouts")
        assert await store.counts() == {} and len(await store.query_attempts(rollout_id)) == 1
        await store.close()


async def test_a_reader_sees_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = SQLiteStore(path)
    reader = SQLiteStore(path, read_only=True)
    count = "SELECT count(*) FROM rollouts"

    def look() -> tuple[int, int]:
        (before,) = reader.db.connection.execute(count).fetchone()
        store.db.connection.execute("DELETE FROM rollouts")
        (after,) = reader.db.connection.execute(count).fetchone()
        return before, after

    await store.enqueue_rollout(1)
    assert await reader.writer.read(look) == (1, 1)
    assert await reader.query_rollouts() == []
    await reader.close()
    await store.close()


async def test_in_one_process_the_same_rules_hold(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = SQLiteStore(path)
    with pytest.raises(Locked, match=r"this process already writes it\. Use the store object that it made"):
        SQLiteStore(path)
    reader = SQLiteStore(path, read_only=True)
    await store.enqueue_rollout("mine")
    assert [rollout.input for rollout in await reader.query_rollouts()] == ["mine"]
    await reader.close()
    with python(READER, path) as process:
        assert (await asyncio.to_thread(process.communicate))[0] == "['mine']\n"
    with pytest.raises(Locked):  # neither reader has ended the lock
        await asyncio.to_thread(SQLiteStore, path)
    await store.close()


async def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with writer(path) as (process, rollout_id):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert holder_of(path) is None
    reader = open_store(path, read_only=True)
    assert (await reader.get_rollout_by_id(rollout_id)).input == "task"
    await reader.close()
    store = SQLiteStore(path)
    latest = await store.get_latest_attempt(rollout_id)
    assert latest is not None
    await store.update_attempt(rollout_id, latest.attempt_id, AttemptStatus.SUCCEEDED)
    await store.close()


def test_a_look_at_the_lock_refuses_no_writer(tmp_path: Path) -> None:
    FileLock(tmp_path / "s.sqlite").release()
    with python(HOLD_SHARED, tmp_path / "s.sqlite.lock") as looking:
        assert looking.stdout is not None and looking.stdout.readline() == "locked\n"
        FileLock(tmp_path / "s.sqlite").release()


async def test_only_the_user_may_open_the_files(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    for name in ("s.sqlite", "s.sqlite.lock"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    await store.close()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.sqlite: there is no such file to read"):
        open_store(tmp_path / "none.sqlite", read_only=True)
    with pytest.raises(StoreError, match="there is no such file"):
        open_store(":memory:", read_only=True)
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(StoreError, match="the file holds no store yet"):
        open_store(tmp_path / "empty.sqlite", read_only=True)
    (tmp_path / "text.sqlite").write_text("no database, though long enough to be taken for one " * 40)
    with pytest.raises(StoreError, match="cannot be opened as a store"):
        open_store(tmp_path / "text.sqlite", read_only=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.sqlite", "text.sqlite"]
