"""Group commit: isolation of errors, failed commits, cancellation, threads, forks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from contract.store import span

from agentlightning.store.base import Conflict, NotFound, StoreError
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptedRollout, AttemptStatus, Rollout, RolloutConfig


async def test_writes_of_one_turn_share_a_commit(sqlite: SQLiteStore) -> None:
    await sqlite.counts()
    before = sqlite.writer.commits
    await asyncio.gather(*(sqlite.enqueue_rollout(i) for i in range(50)))
    assert sqlite.writer.commits == before + 1


async def test_an_error_undoes_its_own_write_alone(sqlite: SQLiteStore) -> None:
    await sqlite.enqueue_rollout("x", rollout_id="ro-known")
    results = await asyncio.gather(
        sqlite.enqueue_rollout(1, rollout_id="ro-a"),
        sqlite.enqueue_many_rollouts(
            [Rollout(rollout_id="ro-b", input=2), Rollout(rollout_id="ro-known", input="y")]
        ),
        sqlite.update_attempt("ro-a", "at-x", AttemptStatus.RUNNING),
        sqlite.enqueue_rollout(3, rollout_id="ro-c"),
        return_exceptions=True,
    )
    assert isinstance(results[1], Conflict) and isinstance(results[2], NotFound)
    assert [r.rollout_id for r in await sqlite.query_rollouts()] == ["ro-known", "ro-a", "ro-c"]


async def test_a_cancelled_writer_leaves_the_others_alone(sqlite: SQLiteStore) -> None:
    tasks = [asyncio.create_task(sqlite.enqueue_rollout(i, rollout_id=f"ro-{i}")) for i in range(3)]
    await asyncio.sleep(0)  # each has run up to its commit
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert isinstance(done[0], Rollout) and isinstance(done[2], Rollout)


async def test_a_cancelled_lease_goes_back_to_the_queue(sqlite: SQLiteStore) -> None:
    await sqlite.enqueue_rollout(1)
    task = asyncio.create_task(sqlite.dequeue_rollout("w"))
    await asyncio.sleep(0)  # leased, not yet on file
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lease = await sqlite.dequeue_rollout("v")
    assert lease is not None and lease.attempt.sequence_id == 2


async def test_a_lease_that_went_back_is_no_try(sqlite: SQLiteStore) -> None:
    made = await sqlite.enqueue_rollout(1, config=RolloutConfig(max_attempts=2, retry_on=["model-5xx"]))
    for _ in range(2):
        task = asyncio.create_task(sqlite.dequeue_rollout("gone"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    ends = []
    for _ in range(2):
        lease = await sqlite.dequeue_rollout("w")
        assert lease is not None
        ids = made.rollout_id, lease.attempt.attempt_id
        await sqlite.update_attempt(*ids, AttemptStatus.FAILED, reason="model-5xx: down")
        ends.append(str((await sqlite.get_rollout_by_id(made.rollout_id)).status))
    assert ends == ["requeuing", "failed"]


async def test_a_full_disk_fails_all_writers_of_the_turn_and_loses_nothing_else(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    kept = [(await store.enqueue_rollout(os.urandom(3000).hex())).rollout_id for _ in range(5)]
    (pages,) = store.db.connection.execute("PRAGMA page_count").fetchone()
    store.db.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    results = await asyncio.gather(
        *(store.enqueue_rollout(os.urandom(20_000).hex()) for _ in range(30)), return_exceptions=True
    )
    failed = [r for r in results if isinstance(r, Exception)]
    assert failed and all(isinstance(e, StoreError) and "full" in str(e) for e in failed)
    store.db.connection.execute("PRAGMA max_page_count = 1000000")
    acknowledged = {*kept, *(r.rollout_id for r in results if isinstance(r, Rollout))}
    assert {r.rollout_id for r in await store.query_rollouts()} == acknowledged
    again = await store.enqueue_rollout("after")
    await store.close()
    reopened = SQLiteStore(tmp_path / "s.sqlite")
    assert {r.rollout_id for r in await reopened.query_rollouts()} == {*acknowledged, again.rollout_id}
    await reopened.close()


async def test_a_failed_commit_fails_every_waiter(sqlite: SQLiteStore) -> None:
    connection = sqlite.db.connection
    connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    connection.execute("PRAGMA foreign_keys = ON")  # a violated deferred key fails at COMMIT, not before

    async def poison() -> None:
        await sqlite.writer.write(lambda: connection.execute("INSERT INTO child VALUES (7)"))

    results = await asyncio.gather(
        sqlite.enqueue_rollout(1), poison(), sqlite.query_rollouts(), return_exceptions=True
    )
    assert all(isinstance(r, StoreError) and "commit failed" in str(r) for r in results)
    assert await sqlite.query_rollouts() == []
    assert (await sqlite.enqueue_rollout(2)).input == 2


async def test_other_threads_hand_their_work_to_the_owning_loop(sqlite: SQLiteStore) -> None:
    await sqlite.enqueue_rollout("mine")
    waiting = asyncio.create_task(sqlite.dequeue_many_rollouts("w", limit=1, run_id="far", wait=30.0))

    def elsewhere(number: int) -> list[Rollout]:
        async def work() -> list[Rollout]:
            await sqlite.enqueue_rollout(number, run_id="far")
            return await sqlite.query_rollouts(run_id="far")

        return asyncio.run(work())

    found = await asyncio.gather(*(asyncio.to_thread(elsewhere, i) for i in range(4)))
    assert all(found) and len(await waiting) == 1
    assert {r.input for r in await sqlite.query_rollouts(run_id="far")} == {0, 1, 2, 3}


def test_one_loop_after_another_may_use_a_store(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    for i in range(3):
        asyncio.run(store.enqueue_rollout(i))
    assert len(asyncio.run(store.query_rollouts())) == 3
    asyncio.run(store.close())


def test_what_a_stopped_loop_did_not_commit_is_undone(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    loop = asyncio.new_event_loop()
    task = loop.create_task(store.enqueue_rollout("never acknowledged"))
    loop.call_soon(loop.stop)
    loop.run_forever()  # one turn: written, not yet committed
    assert store.db.connection.in_transaction
    asyncio.run(store.enqueue_rollout("ok"))
    assert [r.input for r in asyncio.run(store.query_rollouts())] == ["ok"]
    with pytest.raises(StoreError, match="stopped before the commit"):  # should it run again, nobody hangs
        loop.run_until_complete(task)
    loop.close()
    asyncio.run(store.close())


def test_a_caller_elsewhere_is_told_when_the_owning_loop_ends(tmp_path: Path) -> None:
    """The tasks of a loop that ends are cancelled; nobody cancelled the one who asked."""
    store = SQLiteStore(tmp_path / "s.sqlite")
    owns, end = threading.Event(), threading.Event()

    async def own() -> None:
        await store.enqueue_rollout(1)
        owns.set()
        await asyncio.to_thread(end.wait)

    async def ask() -> None:
        waiting = asyncio.create_task(store.dequeue_rollout("w", run_id="none", wait=60.0))
        while not store.waiters._workers:
            await asyncio.sleep(0.01)
        end.set()
        with pytest.raises(StoreError, match="has ended before it answered"):
            await waiting
        await asyncio.to_thread(owner.join)  # until then one may be told again to ask again
        assert [r.input for r in await store.query_rollouts()] == [1]
        await store.close()

    owner = threading.Thread(target=asyncio.run, args=(own(),))
    owner.start()
    assert owns.wait(300)
    asyncio.run(ask())
    owner.join()


async def test_another_thread_may_close(sqlite: SQLiteStore) -> None:
    asyncio.get_running_loop().set_debug(True)  # so that it watches who wakes its waiters
    waiting = asyncio.create_task(sqlite.dequeue_rollout("w", wait=60.0))
    while not sqlite.waiters._workers:
        await asyncio.sleep(0)
    await asyncio.to_thread(asyncio.run, sqlite.close())
    with pytest.raises(StoreError, match="closed"):
        await asyncio.wait_for(waiting, 300)


FORKING = """
import asyncio, os, sys
from agentlightning.store import SQLiteStore, StoreError
store = SQLiteStore(sys.argv[1])
if os.fork() == 0:
    try:
        asyncio.run(store.enqueue_rollout(1))
        print("no error", flush=True)
    except StoreError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
asyncio.run(store.close())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_told_to_become_a_client(tmp_path: Path) -> None:
    """In an interpreter of its own: a fork of this one would take other tests' threads along."""
    command = [sys.executable, "-c", FORKING, str(tmp_path / "s.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "StoreClient" in done.stdout


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    await store.enqueue_rollout(1)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.enqueue_rollout(2)


async def test_a_write_that_fails_half_way_takes_no_other_with_it(sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout("x")
    known = await sqlite.enqueue_rollout("y", rollout_id="ro-known")

    def half() -> None:
        sqlite.db.connection.execute("DELETE FROM rollouts")
        raise KeyError("half way")

    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    results = await asyncio.gather(
        sqlite.enqueue_rollout(1, rollout_id="ro-a"),
        sqlite.query_rollouts(),
        sqlite.add_span(span(lease), request_id="s"),
        sqlite.dequeue_rollout("w"),
        sqlite.writer.write(half),
        sqlite.add_span(span(lease)),
        sqlite.writer.write(half),
        sqlite.update_attempt(*ids, AttemptStatus.SUCCEEDED),
        return_exceptions=True,
    )
    assert isinstance(results[4], KeyError) and isinstance(results[6], KeyError)
    leased = results[3]
    assert isinstance(leased, AttemptedRollout) and leased.rollout.rollout_id == known.rollout_id
    (attempt,) = await sqlite.query_attempts(known.rollout_id)
    assert attempt.attempt_id == leased.attempt.attempt_id  # the run that counted
    assert [s.sequence_id for s in await sqlite.spans(ids[0])] == [1, 2]
    statuses = {r.rollout_id: str(r.status) for r in await sqlite.query_rollouts()}
    assert statuses == {ids[0]: "succeeded", "ro-known": "preparing", "ro-a": "queuing"}
