"""Servers that are down, restart, answer by half, or are something else; requests that are too large."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentlightning.plugins.stores import open_store
from agentlightning.store import SQLiteStore, StoreError
from agentlightning.types import AttemptStatus
from agl_cluster.store import app, client as store_client
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A web server with one handler for everything."""
    web_app = web.Application()
    web_app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(web_app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_wait_without_end_outlives_a_restart(tmp_path: Path) -> None:
    path, port = tmp_path / "s.sqlite", free_port()
    served = await start(path, port=port)
    client = StoreClient(served.url)
    lease = await client.start_rollout("long")
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    waiting = asyncio.create_task(client.wait_for_rollouts([ids[0]]))
    idle = asyncio.create_task(client.dequeue_rollout("w", run_id="later", wait=600.0))
    for _ in range(3):
        await client.statistics()
    await served.close()
    served = await start(path, port=port)
    await client.update_attempt(*ids, AttemptStatus.SUCCEEDED)
    await client.enqueue_rollout("next", run_id="later")
    assert [r.status.value for r in await waiting] == ["succeeded"]
    found = await idle
    assert found is not None and found.rollout.input == "next"
    await client.close()
    await served.close()


async def test_an_answer_that_breaks_off_is_asked_for_again(sqlite: SQLiteStore) -> None:
    served = await start(sqlite, port=0)
    broken: list[bytes] = []
    halves = (
        b"",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: 100\r\n\r\n\x8a",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    )

    async def relay(request: web.Request) -> web.StreamResponse:
        """The store does what it is asked; the first answers come through by half."""
        body, url = await request.read(), served.url + request.path_qs
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, data=body, headers=request.headers) as real,
        ):
            content, kind = await real.read(), real.content_type
        if len(broken) < len(halves):
            broken.append(halves[len(broken)])
            assert request.transport is not None
            request.transport.write(broken[-1])
            request.transport.close()
        return web.Response(body=content, content_type=kind)

    async with serving(relay) as url:
        client = StoreClient(url)
        made = await client.enqueue_rollout("once")
        assert [r.rollout_id for r in await sqlite.query_rollouts()] == [made.rollout_id]
        assert len(broken) == 4
        await client.close()
    await served.close()


async def test_a_change_is_not_sent_again_when_the_store_may_have_forgotten_it(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However patient a client is: done twice is worse than not known."""
    asked: list[str] = []

    async def lose(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    monkeypatch.setattr(store_client, "_RESEND_SECONDS", 0.2)
    async with serving(lose) as url:
        client = StoreClient(url, patience=3600.0)
        with pytest.raises(StoreError, match=r"POST /v1/agl/rollouts was lost.*may or may not be done"):
            await client.enqueue_rollout("once")
        assert len(asked) > 1
        await client.close()


async def test_a_proxy_without_its_store_is_waited_for(sqlite: SQLiteStore) -> None:
    statuses = [502, 503, 504]

    async def proxy(request: web.Request) -> web.StreamResponse:
        if statuses:
            return web.Response(status=statuses.pop(), text="<html>bad gateway</html>")
        return web.json_response({"rollouts": {}})

    async with serving(proxy) as url:
        client = StoreClient(url)
        assert await client.statistics() == {"rollouts": {}} and not statuses
        await client.close()


@pytest.mark.parametrize("body", [b"[1, 2", b"\xff\xfe", b"<html>", b'"text"'])
async def test_what_is_no_store_is_named_at_once(body: bytes) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with serving(page) as url:
        client = StoreClient(url)
        with pytest.raises(StoreError, match="the server is no store of Agent Lightning: HTTP 200"):
            await client.get_rollout_by_id("ro-1")
        await client.close()


async def test_an_outage_is_told_once_however_many_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    port = free_port()
    client = StoreClient(f"http://127.0.0.1:{port}")
    early = [asyncio.create_task(client.enqueue_rollout(i)) for i in range(10)]
    while "no store answers" not in caplog.text:
        await asyncio.sleep(0)
    served = await start(tmp_path / "s.sqlite", port=port)
    assert sorted(r.input for r in await asyncio.gather(*early)) == list(range(10))
    assert caplog.text.count("no store answers") == caplog.text.count("answers again") == 1
    await client.close()
    await served.close()


async def test_a_request_that_is_too_large_is_refused(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_LIMIT", 2 << 20)
    served = await start(sqlite, port=0)
    client = StoreClient(served.url)
    with pytest.raises(StoreError, match="more than 2 MiB: send less"):
        await client.enqueue_rollout("x" * (3 << 20))
    monkeypatch.setattr(store_client, "BODY_LIMIT", 2 << 20)
    with pytest.raises(StoreError, match="has 3 MiB, the store takes 2"):
        await client.enqueue_rollout("x" * (3 << 20))
    assert (await client.enqueue_rollout("x" * (1 << 20))).input[0] == "x"
    await client.close()
    await served.close()


def test_patience_may_be_set_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert StoreClient("http://localhost:1").patience == 60.0
    monkeypatch.setenv("AGL_STORE_PATIENCE", "600")
    assert StoreClient("http://localhost:1").patience == 600.0
    assert StoreClient("http://localhost:1", patience=1.5).patience == 1.5
    for wrong in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("AGL_STORE_PATIENCE", wrong)
        with pytest.raises(StoreError, match=f"AGL_STORE_PATIENCE is '{wrong}'"):
            StoreClient("http://localhost:1")


async def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    client: Any = StoreClient("http://127.0.0.1:9")
    for call, message in (
        (lambda: client.enqueue_rollout(), "missing a required argument: 'input'"),
        (lambda: client.enqueue_rollout(1, input=2), "multiple values for argument 'input'"),
        (lambda: client.get_latest_resources(1), "too many positional arguments"),
        (lambda: client.statistics(of="r"), "unexpected keyword argument 'of'"),
    ):
        with pytest.raises(TypeError, match=message):
            await call()
    await client.close()


async def test_places() -> None:
    store = open_store("http://localhost:1")
    assert isinstance(store, StoreClient)
    await store.close()
    with pytest.raises(StoreError, match=r"registered for redis://.*http://, https://, sqlite://"):
        open_store("redis://x")
