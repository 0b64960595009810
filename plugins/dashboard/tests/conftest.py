"""A dashboard over runs that the tests of audit make, asked as a browser that was let in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from contract.rich import make_rich
from contract.runs import make_run, plugins

import agl_cluster.plugin
from agl_dashboard.data.places import Places
from agl_dashboard.server.access import Access
from agl_dashboard.server.app import Dashboard, start
from plugins.dashboard.tests.browsing import TOKEN, Browser

Serve = Callable[[Path | str], Awaitable[Browser]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves a place and returns a browser that was let in; closed at the end of the test."""
    running: list[tuple[Dashboard, aiohttp.ClientSession]] = []

    async def one(what: Path | str) -> Browser:
        dashboard = await start(Places(str(what), plugins(agl_cluster.plugin)), Access(TOKEN, lambda _: None))
        session = aiohttp.ClientSession()
        running.append((dashboard, session))
        return Browser(dashboard, session)

    yield one
    for dashboard, session in running:
        await session.close()
        await dashboard.close()


@pytest.fixture
async def runs(tmp_path: Path) -> Path:
    """A folder of two runs: a plain one, and one in which everything happens that may."""
    await make_run(tmp_path)
    await make_rich(tmp_path)
    return tmp_path
