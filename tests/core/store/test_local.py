"""A file that several parts of a process, or several processes, have open: one owns it, the others ask it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from contract.store import call, reward

from agentlightning.store import LocalStore, SQLiteStore, StoreClient, StoreError, address, open_store
from agentlightning.store.http import transport
from agentlightning.store.share import share
from agentlightning.store.sqlite.lock import Locked, owner_of
from agentlightning.types import AttemptStatus


async def pair(path: Path) -> tuple[LocalStore, LocalStore]:
    """The owner, which answers, and a client that has been answered."""
    owner, client = LocalStore(path), LocalStore(path, patience=20.0)
    await owner.statistics()
    await client.statistics()
    assert owner.owned is not None and client.owned is None
    return owner, client


async def answering(path: Path) -> None:
    """Return once the file's owner has said where it answers."""
    while owner_of(path).address is None:
        await asyncio.sleep(0.001)


async def test_the_second_opener_is_a_client_of_the_first(tmp_path: Path) -> None:
    owner, client = await pair(tmp_path / "s.sqlite")
    made = await client.enqueue_rollout({"q": 1})
    assert await owner.get_rollout_by_id(made.rollout_id) == made
    waiting = asyncio.create_task(client.dequeue_rollout("w", run_id="later", wait=30.0))
    await owner.enqueue_rollout(2, run_id="later")
    lease = await waiting
    assert lease is not None and lease.rollout.input == 2
    made_too, count = await client.batch(
        [("enqueue_rollout", {"input": 3}), ("count", {"kind": "a", "reason": "b"})]
    )
    assert made_too.input == 3 and count is None
    await client.close()
    await owner.close()
    with pytest.raises(StoreError, match="the store is closed"):
        await client.statistics()
    with pytest.raises(StoreError, match="the store is closed"):
        await owner.statistics()


async def test_a_client_takes_over_when_the_owner_closes(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    owner, client = await pair(path)
    third = LocalStore(path)
    made = await client.enqueue_rollout(1)
    waiting = [asyncio.create_task(s.wait_for_rollouts([made.rollout_id])) for s in (client, third)]
    lease = await client.dequeue_rollout("w")
    assert lease is not None
    await owner.close()
    await client.add_calls([call(lease)], fence=1)
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    await third.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=[reward(lease, 1.0)])
    assert [[r.status.value for r in found] for found in await asyncio.gather(*waiting)] == [
        ["succeeded"]
    ] * 2
    assert (client.owned is None) != (third.owned is None), "one of them owns the file"
    await client.close()
    (record,) = await third.records([made.rollout_id])
    assert len(record.calls) == 1 and len(record.rewards) == 1
    await third.close()


@pytest.mark.parametrize("batched", [False, True])
async def test_a_change_whose_answer_was_lost_is_not_done_again_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    owner, client = await pair(tmp_path / "s.sqlite")
    once = transport.Transport._send_once

    async def lost(self: Any, request: Any) -> Any:
        await once(self, request)
        monkeypatch.undo()
        await owner.close()
        raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(transport.Transport, "_send_once", lost)
    if batched:
        (made,) = await client.batch([("enqueue_rollout", {"input": "once"})])
    else:
        made = await client.enqueue_rollout("once")
    assert client.owned is not None
    assert [r.rollout_id for r in await client.query_rollouts()] == [made.rollout_id]
    await client.close()


async def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s.sqlite.sock"))
    left.close()
    owner, client = await pair(tmp_path / "s.sqlite")
    assert client.url == f"unix://{tmp_path}/s.sqlite.sock"
    await client.close()
    await owner.close()
    assert not (tmp_path / "s.sqlite.sock").exists()


async def test_only_the_user_may_open_the_socket(tmp_path: Path) -> None:
    owner, client = await pair(tmp_path / "s.sqlite")
    for name in ("s.sqlite", "s.sqlite.sock", "s.sqlite.lock"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    await client.close()
    await owner.close()


@pytest.mark.parametrize("why", ["too long", "a file of that name"])
async def test_where_no_socket_can_lie_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    folder = tmp_path
    if why == "too long":
        folder = tmp_path / ("d" * 60) / ("e" * 60)
    else:
        (tmp_path / "s.sqlite.sock").write_text("mine")
    wide = tmp_path / "wide" / f"agentlightning-{os.getuid()}"
    wide.mkdir(parents=True)
    wide.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(wide.parent))  # not private: another is used
    owner, client = await pair(folder / "s.sqlite")
    place = Path(client.url.removeprefix("unix://"))
    assert len(os.fsencode(place)) <= 100 and place.parent != wide
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    await client.close()
    await owner.close()
    assert not place.exists()
    assert why == "too long" or (tmp_path / "s.sqlite.sock").read_text() == "mine"


async def test_where_no_socket_can_be_made_at_all_the_owner_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(address, "_places", lambda file: iter(()))
    owner = LocalStore(tmp_path / "s.sqlite")
    await owner.enqueue_rollout(1)
    while "other processes cannot use" not in caplog.text:
        await asyncio.sleep(0)
    client = LocalStore(tmp_path / "s.sqlite", patience=0.0)
    with pytest.raises(Locked, match="open_store or `agl store`, which share it"):
        await client.statistics()
    await client.close()
    await owner.close()


async def test_an_owner_that_does_not_share_is_named(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    client = LocalStore(tmp_path / "s.sqlite", patience=0.0)
    with pytest.raises(Locked, match="this process already has it open"):
        await client.statistics()
    shared = await share(store)
    assert shared is not None and (await client.enqueue_rollout(1)).input == 1
    await shared.close()
    await store.close()
    assert (await client.enqueue_rollout(2)).input == 2 and client.owned is not None
    await client.close()


async def test_without_unix_sockets_a_port_asks_for_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "HAS_UNIX", False)
    path = tmp_path / "s.sqlite"
    owner, client = await pair(path)
    told = owner_of(path)
    assert told.address is not None and told.address == client.url and len(told.token or "") == 64
    stranger = StoreClient(told.address)
    with pytest.raises(StoreError, match="Unauthorized"):
        await stranger.statistics()
    await stranger.close()
    third = LocalStore(path)
    assert (await third.enqueue_rollout(1)).input == 1
    await owner.close()
    await client.enqueue_rollout(2)
    assert client.owned is not None and len(await third.query_rollouts()) == 2  # found at the other port
    await third.close()
    await client.close()
    assert owner_of(path).token is None


def test_it_is_shared_again_in_each_loop(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    owner = LocalStore(path)

    async def ask() -> int:
        await owner.enqueue_rollout(1)
        client = LocalStore(path, patience=20.0)
        found = await client.query_rollouts()
        await client.close()
        return len(found)

    assert [asyncio.run(ask()), asyncio.run(ask())] == [1, 2]
    assert owner_of(path).address is None and not address.beside(path).exists()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())
    assert asyncio.run(ask()) == 4  # the loop before stopped without an end
    asyncio.run(owner.close())
    loop.run_until_complete(asyncio.sleep(0))
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    asyncio.run(SQLiteStore(path).close())


def test_a_loop_that_was_dropped_takes_nothing_from_the_next(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    owner = LocalStore(path)
    dropped = asyncio.new_event_loop()
    dropped.run_until_complete(owner.enqueue_rollout(1))
    dropped.run_until_complete(answering(path))
    keeper = weakref.ref(owner._keeper)

    async def after() -> int:
        await owner.enqueue_rollout(2)
        await answering(path)
        gc.collect()  # the keeper in the dropped loop is closed where it waits
        assert keeper() is None
        client = LocalStore(path, patience=20.0)
        found = await client.query_rollouts()
        await client.close()
        return len(found)

    assert asyncio.run(after()) == 2
    asyncio.run(owner.close())
    dropped.close()


async def test_threads_share_one_store(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "s.sqlite")
    await store.statistics()
    threads = [threading.Thread(target=lambda i=i: asyncio.run(store.enqueue_rollout(i))) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        await asyncio.sleep(0.001)
    assert sorted(r.input for r in await store.query_rollouts()) == [0, 1, 2, 3]
    await store.close()


async def test_a_forked_child_is_a_client_of_its_parent(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "s.sqlite")
    await store.enqueue_rollout("parent")
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = asyncio.run(store.enqueue_rollout("child"))
            os.write(into, found.rollout_id.encode())
        finally:
            os._exit(0)
    os.close(into)
    said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(out, lambda: said.done() or said.set_result(os.read(out, 100)))
    rollout_id = (await said).decode()
    asyncio.get_running_loop().remove_reader(out)
    os.close(out)
    os.waitpid(child, 0)
    assert (await store.get_rollout_by_id(rollout_id)).input == "child"
    await store.close()


async def test_a_socket_has_a_url(tmp_path: Path) -> None:
    owner, client = await pair(tmp_path / "s.sqlite")
    plain = open_store(client.url)
    assert isinstance(plain, StoreClient) and not isinstance(plain, LocalStore)
    assert (await plain.enqueue_rollout(1)).input == 1
    await plain.close()
    await client.close()
    await owner.close()
    with pytest.raises(StoreError, match="no socket"):
        StoreClient("unix://")
