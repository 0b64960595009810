"""Who is let in: a key once, a cookie, a token; and what no web page may ask."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from contract.runs import plugins

from agentlightning.webserver.loopback import ExposedServer
from agl_dashboard.data.places import Places
from agl_dashboard.server.access import Access
from agl_dashboard.server.app import start
from plugins.dashboard.tests.conftest import Serve


async def test_a_key_opens_the_pages_once_in_one_browser(runs: Path) -> None:
    said: list[str] = []
    access = Access(say=said.append)
    dashboard = await start(Places(str(runs), plugins()), access)
    access.announce(dashboard.url)
    address = said[0].rpartition(" ")[2]
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            async with browser.get(dashboard.url) as answer:
                assert answer.status == 401 and "agl dashboard" in await answer.text()
            async with browser.get(address, allow_redirects=False) as answer:
                cookie = answer.headers["Set-Cookie"]
                assert answer.status == 303 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
            async with browser.get(dashboard.url) as answer:
                assert answer.status == 200
        async with aiohttp.ClientSession() as other, other.get(address) as answer:
            assert answer.status == 403
        assert said[1].rpartition(" ")[2] not in (address, "") and access.token not in " ".join(said)
    finally:
        await dashboard.close()


async def test_nothing_of_a_store_is_answered_without_a_token(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    for path in ("/", "/s/x/runs/y", "/s/x/events", "/s/x/rollouts/y", "/none"):
        page = await browser.get(path, status=401, Authorization="Bearer wrong")
        assert "Locked" in page.words


@pytest.mark.parametrize(
    ("header", "value"), [("Host", "evil.example"), ("Origin", "http://evil.example"), ("Origin", "null")]
)
async def test_requests_of_other_pages_are_refused(header: str, value: str, runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    await browser.get("/", status=403, **{header: value})


async def test_nothing_can_be_written(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    url = browser.dashboard.url
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        given = {"Authorization": "Bearer a token that only the tests know"}
        async with browser.session.request(method, url, headers=given) as answer:
            assert answer.status == 405
    routes = {route.method for route in browser.dashboard.runner.app.router.routes()}
    assert routes <= {"GET", "HEAD"}


async def test_every_answer_says_what_a_browser_may_do(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    for path, status in (("/", 200), ("/static/dashboard.css", 200), ("/none", 404)):
        page_headers = (await browser.session.get(browser.dashboard.url + path,
                        headers={"Authorization": "Bearer a token that only the tests know"}))  # fmt: skip
        async with page_headers as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert answer.status == status and "default-src 'none'" in policy and "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_another_interface_needs_a_token(runs: Path) -> None:
    with pytest.raises(ExposedServer, match="AGL_DASHBOARD_TOKEN"):
        await start(Places(str(runs), plugins()), Access(say=lambda _: None), host="0.0.0.0")
