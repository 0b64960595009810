"""Web pages are refused by the APIs that this plugin brings, as by those of core."""

from __future__ import annotations

import pytest
from core.webserver import test_guard as core
from core.webserver.test_guard import gateway as gateway, store as store

from agentlightning.gateway import Gateway
from agentlightning.store import SQLiteStore


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_pages_are_refused(gateway: Gateway, store: SQLiteStore, path: str) -> None:
    await core.test_the_gateway_refuses_pages(gateway, store, path)
