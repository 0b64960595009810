"""Clients that begin and do not go on: half a header, half a body, nothing at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from agentlightning import webserver
from agentlightning.types.base import RequestRefused
from agentlightning.webserver import app_runner, body, listen


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(webserver, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(body, "IDLE_SECONDS", 0.2)

    async def echo(request: web.Request) -> web.Response:
        try:
            return web.Response(body=await body.read(request, 1000))
        except RequestRefused as refused:
            return web.Response(status=refused.status, text=refused.reason)

    app = web.Application()
    app.router.add_post("/", echo)
    runner = app_runner(app)
    url = await listen(runner)
    yield int(url.rpartition(":")[2])
    await runner.cleanup()


async def said(port: int, sent: bytes) -> bytes:
    """What the server says before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    found: Any = await reader.read()
    writer.close()
    return bytes(found)


@pytest.mark.parametrize("sent", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le"])
async def test_a_connection_without_a_whole_header_is_closed(port: int, sent: bytes) -> None:
    assert await said(port, sent) == b""


async def test_half_a_header_after_a_whole_request_is_closed_too(port: int) -> None:
    whole = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    found = await said(port, whole + b"POST / HTTP/1.1\r\nHos")
    assert found.startswith(b"HTTP/1.1 200") and found.count(b"HTTP/1.1") == 1


async def test_a_body_that_does_not_go_on_is_refused(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nhalf")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    writer.close()
