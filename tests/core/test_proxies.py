"""Proxies of the environment: our own servers are reached directly, vendors through them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from agentlightning.gateway.client import EngineClient, Limits
from agentlightning.gateway.errors import EngineUnreachable
from agentlightning.gateway.route import Upstream
from agentlightning.proxies import direct_variables, go_direct, vendor_proxy

LOOPBACK = "127.0.0.1,localhost,::1"


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment with a proxy at which nothing listens."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")  # so that what a test adds is removed after it
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    yield monkeypatch


@pytest.mark.parametrize(
    ("base", "urls", "expected"),
    [
        ({}, ["http://10.0.0.5:1/v1"], None),
        ({"http_proxy": ""}, [], None),
        ({"ALL_PROXY": "http://p"}, [None], LOOPBACK),
        ({"HTTP_PROXY": "http://p", "NO_PROXY": "a, b"}, ["http://gw:80/v1"], f"a,b,{LOOPBACK},gw"),
        ({"HTTP_PROXY": "http://p", "no_proxy": "gw"}, ["http://gw/v1"], f"gw,{LOOPBACK}"),
        ({"https_proxy": "http://p"}, ["http://[fd00::5]:80/v1", "http://x"], f"{LOOPBACK},fd00::5,x"),
    ],
)
def test_our_hosts_are_added_where_there_is_a_proxy(
    base: dict[str, str], urls: list[str | None], expected: str | None
) -> None:
    wanted = {} if expected is None else {"NO_PROXY": expected, "no_proxy": expected}
    assert direct_variables(base, *urls) == wanted


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://[fd00::5]:1/v1", "http://gw:1/v1"]
)
def test_http_clients_go_there_directly(url: str, proxied: pytest.MonkeyPatch) -> None:
    import httpx
    from aiohttp.helpers import get_env_proxy_for_url
    from requests.utils import should_bypass_proxies
    from yarl import URL

    go_direct(url)
    assert should_bypass_proxies(url, None) and not should_bypass_proxies("https://vendor.example", None)
    with pytest.raises(LookupError):
        get_env_proxy_for_url(URL(url))
    assert get_env_proxy_for_url(URL("https://vendor.example"))
    with httpx.Client() as client:
        assert client._transport_for_url(httpx.URL(url)) is client._transport
        assert client._transport_for_url(httpx.URL("https://vendor.example")) is not client._transport


def test_only_vendors_have_a_proxy(proxied: pytest.MonkeyPatch) -> None:
    assert vendor_proxy("https://vendor.example/v1") == "http://127.0.0.1:9"
    assert vendor_proxy("http://10.0.0.7:8000/v1") is vendor_proxy("https://localhost/v1") is None
    proxied.setenv("no_proxy", "vendor.example")
    assert vendor_proxy("https://vendor.example/v1") is None
    proxied.setenv("HTTPS_PROXY", "socks5://127.0.0.1:9")
    assert vendor_proxy("https://other.example/v1") is None
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        proxied.delenv(name)
    assert vendor_proxy("https://other.example/v1") is None


async def test_the_gateway_asks_a_vendor_through_the_proxy(proxied: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        proxied.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        client = EngineClient(Limits(), Counter())
        await client.start()
        route = Upstream(policy="judge", url="https://vendor.example/v1", model="m")
        with pytest.raises(EngineUnreachable):
            await client.ask(route, "chat", b"{}", {}, None)
        await client.stop()
    assert asked == [b"CONNECT vendor.example:443 HTTP/1.1\r\n"]
    assert "vendor.example" not in os.environ["NO_PROXY"]
