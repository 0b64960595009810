"""A store and a gateway over HTTP, with a scripted engine behind the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from core.webserver import conftest as core

from agl_cluster.roles import Role, RoleTokens
from agl_cluster.store.server import ServedStore, start


@dataclass
class World(core.World):
    """What a test sends to: a store and a gateway, with the key of one attempt and a token of the store."""

    served: ServedStore
    token: str


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    """A world; ``AGL_SECRET`` must be set to that of core's world."""
    async with core.opened(folder) as world:
        served = await start(world.store, port=0)
        yield World(**vars(world), served=served, token=RoleTokens(core.SECRET).derive(Role.ADMIN))
        await served.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("AGL_SECRET", core.SECRET.decode())
    async with opened(tmp_path) as found:
        yield found
