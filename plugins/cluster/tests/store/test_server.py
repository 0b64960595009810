"""The HTTP side: routes, typed errors, tokens, batches, lost answers, start and stop."""

from __future__ import annotations

import asyncio
import gzip
import math
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from contract.store import call, reward, span

from agentlightning.plugins.manager import load
from agentlightning.plugins.stores import open_store
from agentlightning.store import AttemptEnded, SQLiteStore, Store, StoreError
from agentlightning.store.base import OPERATIONS
from agentlightning.types import AttemptStatus
from agl_cluster.store.app import create_app
from agl_cluster.store.client import StoreClient
from agl_cluster.store.outcomes import Unauthorized
from agl_cluster.store.routes import BY_NAME, TABLE, all_routes
from agl_cluster.store.server import ServedStore, start


async def answer(response: Any) -> tuple[int, Any]:
    async with response as found:
        return found.status, await found.json()


def test_every_method_has_a_route_and_every_route_a_method() -> None:
    methods = {n for n, m in vars(Store).items() if not n.startswith("_") and callable(m)}
    assert methods - {"close", "for_other_loop", "act_as"} == OPERATIONS
    assert set(BY_NAME) == OPERATIONS and len(TABLE) == len(BY_NAME)
    assert set(all_routes()) == OPERATIONS | load().store_operations.keys() - {"batch"}
    for name in methods:
        assert callable(getattr(SQLiteStore, name)) and callable(getattr(StoreClient, name))


async def test_plain_json_works_without_our_client(http: aiohttp.ClientSession) -> None:
    status, made = await answer(http.post("/v1/agl/rollouts", json={"input": {"q": 1}, "mode": "val"}))
    assert status == 200 and made["status"] == "queuing" and made["mode"] == "val"
    assert (await answer(http.get(f"/v1/agl/rollouts/{made['rollout_id']}")))[1] == made
    status, lease = await answer(http.post("/v1/agl/queue/dequeue", json={"worker_id": "w"}))
    path = f"/v1/agl/rollouts/{made['rollout_id']}/attempts/{lease['attempt']['attempt_id']}"
    status, ended = await answer(http.patch(path, json={"status": "failed", "reason": "x"}))
    assert (status, ended.get("status")) == (200, "failed"), ended
    status, error = await answer(http.patch(path, json={"status": "succeeded"}))
    assert (status, error["error"]) == (409, "AttemptEnded")
    assert (await answer(http.get("/v1/agl/counts?rollout_id=" + made["rollout_id"])))[1] == {
        "refused": {"update-after-failed": 1}
    }
    status, found = await answer(http.get(f"/v1/agl/rollouts/{made['rollout_id']}/spans?limit=3"))
    assert (status, found) == (200, [])


async def test_errors_say_what_and_where(http: aiohttp.ClientSession) -> None:
    status, error = await answer(http.get("/v1/agl/rollouts/ro-x"))
    assert (status, error["error"]) == (404, "NotFound") and "ro-x" in error["message"]
    status, error = await answer(
        http.post("/v1/agl/rollouts", json={"input": 1, "config": {"max_attempts": "2"}})
    )
    assert status == 400 and "$.config.max_attempts" in error["message"]
    status, error = await answer(http.post("/v1/agl/rollouts", json={"inptu": 1}))
    assert status == 400 and "inptu" in error["message"]
    status, error = await answer(
        http.post("/v1/agl/rollouts", data=b"{", headers={"Content-Type": "application/json"})
    )
    assert status == 400
    packed = {
        "data": gzip.compress(b"{}"),
        "headers": {"Content-Encoding": "gzip", "Content-Type": "application/json"},
    }
    status, error = await answer(http.post("/v1/agl/rollouts", **packed))
    assert status == 415 and "not compressed" in error["message"]
    status, error = await answer(http.get("/v1/agl/rollouts/ro-x/spans?limit=many"))
    assert status == 400 and "$.limit" in error["message"]
    status, error = await answer(http.post("/v1/agl/queue/dequeue/many", json={"limit": 0}))
    assert status == 400 and "limit" in error["message"]
    status, health = await answer(http.get("/v1/agl/health"))
    assert (status, health["status"]) == (200, "ok")


@pytest.mark.parametrize(
    "wrong", ["NaN", "Infinity", "-Infinity", "-1", "1e300", '"1"', "true", "[1]", "1" + "0" * 400]
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/queue/dequeue", '{"wait": %s}'),
        ("/queue/dequeue/many", '{"limit": 1, "wait": %s}'),
        ("/rollouts/wait", '{"rollout_ids": [], "timeout": %s}'),
        ("/runs/prune", '{"older_than": %s}'),
        ("/rollouts", '{"input": 1, "config": {"timeout_seconds": %s}}'),
        ("/rollouts", '{"input": 1, "config": {"unresponsive_seconds": %s}}'),
        ("/rollouts/many", '{"rollouts": [{"rollout_id": "", "config": {"timeout_seconds": %s}}]}'),
        ("/runs", '{"run_id": "r", "info": {}, "config": {"unresponsive_seconds": %s}}'),
    ],
)
async def test_a_number_that_is_no_time_is_refused(
    http: aiohttp.ClientSession, path: str, body: str, wrong: str
) -> None:
    headers = {"Content-Type": "application/json"}
    status, error = await answer(http.post(f"/v1/agl{path}", data=body % wrong, headers=headers))
    assert status == 400 and error["message"]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e300])
async def test_timers_go_on_after_a_wait_that_is_no_number(
    sqlite: SQLiteStore, http: aiohttp.ClientSession, wrong: float
) -> None:
    """Also in MessagePack, which has NaN."""
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    for path in ("/queue/dequeue", "/queue/dequeue/many"):
        body = msgspec.msgpack.encode({"wait": wrong})
        async with http.post(f"/v1/agl{path}", data=body, headers=headers) as found:
            assert found.status == 400
    rung = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, rung.set)
    await asyncio.wait_for(rung.wait(), 300)
    assert await sqlite.dequeue_rollout("w", wait=0.001) is None


async def test_a_bug_of_ours_is_a_500_without_its_text(
    served: ServedStore,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise KeyError("a secret")

    monkeypatch.setattr(served.store.db, "sizes", broken)
    status, error = await answer(http.get("/v1/agl/statistics"))
    assert status == 500 and "secret" not in error["message"] and "secret" in caplog.text


async def test_a_token_is_asked_for(sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await start(sqlite, port=0, token="s3cret")
    try:
        for token in (None, "wrong"):
            client = StoreClient(served.url, token)
            with pytest.raises(Unauthorized, match="the bearer token is"):
                await client.statistics()
            await client.close()
        monkeypatch.setenv("AGL_TOKEN", "s3cret")
        for client in (StoreClient(served.url, "s3cret"), open_store(served.url)):
            assert (await client.enqueue_rollout(1)).input == 1
            await client.close()
        async with aiohttp.ClientSession() as session, session.get(f"{served.url}/v1/agl/health") as health:
            assert health.status == 200
        for path in ("GET /v1/agl/statistics", "POST /v1/traces"):  # a token that is no text at all
            reader, writer = await asyncio.open_connection("127.0.0.1", served.runner.addresses[0][1])
            head = f"{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAuthorization: Bearer "
            writer.write(head.encode() + b"\xff\xfe\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
            writer.close()
    finally:
        await served.close()


async def test_the_network_is_refused_without_a_token(sqlite: SQLiteStore) -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(StoreError, match="without a token"):
            await start(sqlite, host=host)


async def test_a_taken_port_is_named(served: ServedStore, tmp_path: Path) -> None:
    port = int(served.url.rsplit(":", 1)[1])
    with pytest.raises(StoreError, match=f"127.0.0.1:{port}"):
        await start(tmp_path / "other.sqlite", port=port)
    await SQLiteStore(tmp_path / "other.sqlite").close()  # its lock was let go


async def test_the_second_opener_is_told_the_address(served: ServedStore) -> None:
    assert served.store.db.path is not None
    with pytest.raises(StoreError, match=served.url):
        SQLiteStore(served.store.db.path)


async def test_a_batch_is_done_in_order_in_one_commit(served: ServedStore) -> None:
    client = StoreClient(served.url)
    await client.statistics()
    before = served.store.writer.commits
    made, lease, missing, found = await client.batch(
        [
            ("enqueue_rollout", {"input": 1, "rollout_id": "ro-b"}),
            ("dequeue_rollout", {"worker_id": "w"}),
            ("get_rollout_by_id", {"rollout_id": "ro-x"}),
            ("get_rollout_by_id", {"rollout_id": "ro-b"}),
        ]
    )
    assert served.store.writer.commits == before + 1
    assert made.rollout_id == lease.rollout.rollout_id == found.rollout_id == "ro-b"
    assert found.status == "preparing" and type(missing).__name__ == "NotFound"
    last = [reward(lease, 1.0)]
    params = {
        "rollout_id": "ro-b",
        "attempt_id": lease.attempt.attempt_id,
        "status": "succeeded",
        "spans": last,
    }
    (ended,) = await client.batch([("update_attempt", params)])
    assert ended.status is AttemptStatus.SUCCEEDED
    (late,) = await client.batch([("add_span", {"span": span(lease)})])
    assert isinstance(late, AttemptEnded)
    with pytest.raises(ValueError, match="no store method 'drop'"):
        await client.batch([("drop", {})])
    await client.close()


async def test_a_batch_names_its_errors(http: aiohttp.ClientSession) -> None:
    calls = [{"method": "close"}, {"method": "records", "params": {"rollout_ids": 3}}]
    status, outcomes = await answer(http.post("/v1/agl/batch", json=calls))
    assert status == 200 and "no 'close'" in outcomes[0]["error"]["message"]
    assert "$.rollout_ids" in outcomes[1]["error"]["message"]


async def test_lost_answers_do_not_double_anything(sqlite: SQLiteStore) -> None:
    lost: set[str] = set()

    @web.middleware
    async def lossy(request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        key = request.method + request.path
        if key not in lost and request.method != "GET":
            lost.add(key)  # done, but the first answer of each route never arrives
            assert request.transport is not None
            request.transport.close()
        return response

    app = create_app(sqlite)
    app.middlewares.append(lossy)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = StoreClient(f"http://127.0.0.1:{runner.addresses[0][1]}")
    made = await client.enqueue_rollout(1)
    lease = await client.dequeue_rollout("w")
    assert lease is not None and lease.rollout.rollout_id == made.rollout_id
    await client.add_span(span(lease))
    await client.add_calls([call(lease)])
    await client.count("dropped", "x")
    ids = made.rollout_id, lease.attempt.attempt_id
    await client.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=[reward(lease, 1.0)])
    await client.batch([("enqueue_rollout", {"input": 2})])
    assert len(lost) == 7
    assert len(await sqlite.query_rollouts()) == 2 and len(await sqlite.query_attempts(made.rollout_id)) == 1
    statistics = await sqlite.statistics()
    assert (statistics["calls"], statistics["spans"]) == (1, 2)
    assert await sqlite.counts() == {"dropped": {"x": 1}}
    await client.close()
    await runner.cleanup()


async def test_a_client_that_comes_first_waits(sqlite: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = StoreClient(f"http://127.0.0.1:{port}")
    early = asyncio.create_task(client.enqueue_rollout("early"))
    while "no store answers" not in caplog.text:
        await asyncio.sleep(0)
    served = await start(sqlite, port=port)
    assert (await early).input == "early"
    await client.close()
    await served.close()


async def test_a_client_gives_up_with_a_clear_message() -> None:
    client = StoreClient("http://127.0.0.1:1", patience=0.0)
    with pytest.raises(StoreError, match="agl store"):
        await client.statistics()
    await client.close()
    with pytest.raises(StoreError, match="http://"):
        StoreClient("localhost:4747")


async def test_another_server_is_recognised() -> None:
    app = web.Application()
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = StoreClient(f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(StoreError, match="the server is no store of Agent Lightning: HTTP 404"):
        await client.statistics()
    await client.close()
    await runner.cleanup()


SERVE = """
import asyncio, sys
from agl_cluster.store.server import serve
asyncio.run(serve(sys.argv[1], port=0, ready=lambda url: print(url, flush=True)))
"""


async def test_sigterm_closes_the_store_in_good_order(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    client = StoreClient(url)
    made = await client.enqueue_rollout("kept")
    waiting = asyncio.create_task(client.dequeue_rollout("w", run_id="never", wait=30.0))
    await client.statistics()
    os.kill(process.pid, signal.SIGTERM)
    assert await process.wait() == 0
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await client.close()
    store = SQLiteStore(path)
    assert (await store.get_rollout_by_id(made.rollout_id)).input == "kept"
    assert not path.with_name("s.sqlite-wal").exists() or path.with_name("s.sqlite-wal").stat().st_size == 0
    await store.close()
