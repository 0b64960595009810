"""Several stores on one database: leases, fences, signals, one leader, and writes that meet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.postgres_server import PostgresServer
from contract.storing import call, span

pytest.importorskip("agl_postgres.store")
from agentlightning.store.base import AttemptEnded, Conflict, StoreError
from agentlightning.types import AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from agl_postgres.store import PostgresStore

Stores = list[PostgresStore]


@pytest.fixture
async def stores(url: str) -> AsyncIterator[Stores]:
    opened = [PostgresStore(url, look_seconds=0.1) for _ in range(3)]
    yield opened
    for store in opened:
        await store.close()


async def test_each_rollout_is_leased_once(stores: Stores) -> None:
    await stores[0].enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(300)])
    taken: list[int] = []

    async def worker(store: PostgresStore, name: str) -> None:
        while len(taken) < 300:
            taken.extend(x.rollout.input for x in await store.dequeue_many_rollouts(name, limit=3))

    await asyncio.gather(*(worker(store, f"w{n}-{i}") for n, store in enumerate(stores) for i in range(4)))
    assert sorted(taken) == list(range(300))


async def test_what_one_process_ends_another_may_not_write(stores: Stores) -> None:
    """No process believes what it knew of an attempt before."""
    one, two, _ = stores
    lease = await one.start_rollout(1)
    await one.add_calls([call(lease)], fence=1)
    again = await two.start_attempt(lease.rollout.rollout_id)
    with pytest.raises(AttemptEnded, match="fence 2"):
        await one.add_calls([call(lease, 1)], fence=1)
    assert await one.heartbeat("w", [lease.attempt.attempt_id]) == [lease.attempt.attempt_id]
    await one.add_span(span(again))
    assert (await two.add_span(span(again))).sequence_id == 2


async def test_numbers_of_many_writers_have_no_gap(stores: Stores) -> None:
    lease = await stores[0].start_rollout(1)
    made = await asyncio.gather(*(stores[i % 3].add_span(span(lease)) for i in range(60)))
    assert sorted(one.sequence_id for one in made) == list(range(1, 61))


async def test_one_id_is_made_once(stores: Stores) -> None:
    for n in range(10):
        given = Rollout(rollout_id=f"ro-{n}", input=n)
        made = await asyncio.gather(*(store.enqueue_many_rollouts([given]) for store in stores))
        assert {one[0].rollout_id for one in made} == {f"ro-{n}"}
    asked = [store.start_rollout(1, rollout_id="ro-x") for store in stores]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(isinstance(one, Conflict) for one in found) == [False, True, True]


async def test_one_request_is_done_once_whoever_gets_it(stores: Stores) -> None:
    lease = await stores[0].start_rollout(1)
    for n in range(10):
        asked = [store.count("made", "call", request_id=f"q{n}") for store in stores]
        spans = [store.add_span(span(lease, str(n)), request_id=f"s{n}") for store in stores]
        numbers = {one.sequence_id for one in await asyncio.gather(*spans)}
        await asyncio.gather(*asked)
        assert numbers == {n + 1}
    assert (await stores[1].counts())["made"] == {"call": 10}


async def test_writes_that_would_lock_in_a_circle_all_succeed(stores: Stores) -> None:
    leases = [await stores[0].start_rollout(i) for i in range(4)]

    async def write(store: PostgresStore, back: bool) -> None:
        for _ in range(10):
            order = leases[::-1] if back else leases
            await store.add_many_spans([span(lease) for lease in order])
            await asyncio.gather(*(store.count("k", str(i)) for i in range(4)))

    await asyncio.gather(write(stores[0], False), write(stores[1], True), write(stores[2], False))
    for lease in leases:
        assert len(await stores[0].query_spans(lease.rollout.rollout_id)) == 30
    assert (await stores[0].counts())["k"] == {str(i): 30 for i in range(4)}


async def test_a_signal_reaches_other_processes(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = stores
    monkeypatch.setattr(type(one.db), "look_seconds", 3_600.0)  # so that nothing but a signal ends a wait
    waiting = asyncio.create_task(two.dequeue_rollout("w", wait=60.0))
    await one.statistics()
    made = await one.enqueue_rollout(1)
    lease = await asyncio.wait_for(waiting, 300.0)
    assert lease is not None
    ended = asyncio.create_task(three.wait_for_rollouts([made.rollout_id], timeout=300.0))
    await one.statistics()
    await two.update_attempt(made.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    (done,) = await asyncio.wait_for(ended, 300.0)
    assert done.status is RolloutStatus.SUCCEEDED


async def test_one_leads_and_another_takes_over(stores: Stores) -> None:
    assert [store.listener.leading for store in stores] == [True, False, False]
    config = RolloutConfig(unresponsive_seconds=0.3, retry_on=["unresponsive"])
    lease = await stores[1].start_rollout(1, config=config)
    again = await asyncio.wait_for(stores[2].dequeue_rollout("w", wait=60.0), 300.0)
    assert again is not None and again.rollout.rollout_id == lease.rollout.rollout_id
    await stores[0].close()
    third = await asyncio.wait_for(stores[2].dequeue_rollout("w", wait=60.0), 300.0)
    assert third is not None and third.attempt.fence == 3
    assert sorted(store.listener.leading for store in stores[1:]) == [False, True]


@pytest.mark.slow
async def test_a_restart_of_the_server_loses_nothing(server_of_its_own: PostgresServer) -> None:
    server = server_of_its_own
    store = PostgresStore(server.url(), look_seconds=0.1)
    other = PostgresStore(server.url(), look_seconds=0.1)
    done: list[str] = []
    stop = asyncio.Event()

    async def write(store: PostgresStore, name: str) -> None:
        while not stop.is_set():
            lease = await store.start_rollout(name)
            await store.add_span(span(lease))  # no request id: the transaction's own mark tells
            await store.count("made", name)
            done.append(lease.rollout.rollout_id)

    waiting = asyncio.create_task(other.dequeue_rollout("w", wait=300.0))
    lanes = [asyncio.create_task(write(one, f"{n}")) for n, one in enumerate((store, other, store))]
    for _ in range(2):
        before = len(done)
        while len(done) < before + 20:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    stop.set()
    await asyncio.gather(*lanes)
    assert sum(one.writer.writes.counts["reconnections"] for one in (store, other)) >= 2
    found = await store.query_rollouts(limit=100_000)
    assert {one.rollout_id for one in found} == set(done) and len(found) == len(done)
    assert sum((await store.counts())["made"].values()) == len(done)
    for rollout_id in done:
        assert [one.sequence_id for one in await store.query_spans(rollout_id)] == [1]
    queued = await store.enqueue_rollout("late")
    lease = await asyncio.wait_for(waiting, 300.0)  # it listens again
    assert lease is not None and lease.rollout.rollout_id == queued.rollout_id
    await store.close()
    await other.close()


async def test_a_caller_that_goes_away_leaves_no_lease_behind(stores: Stores) -> None:
    one, two, _ = stores
    for n in range(20):
        await one.enqueue_rollout(n)
        taking = asyncio.create_task(two.dequeue_rollout("w", wait=30.0))
        await asyncio.sleep(0.001 * (n % 5))
        taking.cancel()
        lease: Any = None
        with contextlib.suppress(asyncio.CancelledError):
            lease = await taking
        lease = lease or await one.dequeue_rollout("v", wait=30.0)
        assert lease is not None and lease.rollout.input == n


async def test_a_closed_store_and_a_lost_connection_are_told(url: str) -> None:
    store = PostgresStore(url)
    await store.close()
    await store.close()
    with pytest.raises(Exception, match="closed"):
        await store.enqueue_rollout(1)


@pytest.mark.slow
async def test_a_server_that_stays_away_is_told(
    server_of_its_own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_STORE_PATIENCE", "0.5")
    store = PostgresStore(server_of_its_own.url())
    await store.enqueue_rollout(1)
    server_of_its_own.kill()
    for ask in (store.enqueue_rollout(2), store.query_rollouts()):
        with pytest.raises(StoreError, match=r"postgresql://agl:\*\*\*@"):
            await ask
    server_of_its_own.start()
    assert [one.input for one in await store.query_rollouts()] == [1]
    await store.close()


@pytest.mark.slow
async def test_a_commit_without_an_answer_is_in_doubt(
    server_of_its_own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies with the commit, and stays away: nobody says that nothing was stored."""
    monkeypatch.setenv("AGL_STORE_PATIENCE", "0.5")
    store = PostgresStore(server_of_its_own.url())
    await store.enqueue_rollout(1)

    def die(transaction: Any) -> None:
        server_of_its_own.kill()

    monkeypatch.setattr(store, "committing", die)
    with pytest.raises(StoreError, match="whether the write was stored is not known"):
        await store.enqueue_rollout(2)
    monkeypatch.undo()
    server_of_its_own.start()
    assert [one.input for one in await store.query_rollouts()] == [1]
    await store.close()
