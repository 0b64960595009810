"""A store and a gateway over HTTP, with a scripted engine behind the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.store.server import Served, start
from agentlightning.testing import ScriptedModelServer

SECRET = b"0123456789abcdef0123456789abcdef"


class World(NamedTuple):
    """What a test sends to: a store (without a token) and a gateway, with the key of one attempt."""

    store: SQLiteStore
    served: Served
    gateway: Gateway
    key: str
    ids: tuple[str, str]

    async def stored(self) -> str:
        """How much there is of everything that requests may add."""
        found = await self.store.statistics()
        kinds = "rollouts", "attempts", "calls", "spans", "workers", "resources", "runs"
        return ", ".join(f"{name}: {found[name]}" for name in kinds)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    """A world; ``AGL_SECRET`` must be set to :data:`SECRET`."""
    store = SQLiteStore(folder / "store.sqlite")
    served = await start(store, port=0)
    lease = await store.start_rollout({"q": 1}, worker_id="w")
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    gateway = Gateway(store, Keys(SECRET))
    server = ScriptedModelServer(lambda request: "the answer", ids="always")
    await server.start()
    gateway.add_route(Upstream(url=server.url, model="scripted"))
    await gateway.start()
    info = AttemptInfo(rollout_id=ids[0], attempt_id=ids[1], fence=lease.attempt.fence)
    try:
        yield World(store, served, gateway, gateway.open_attempt(info), ids)
    finally:
        await gateway.stop()
        await server.stop()
        await served.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    async with opened(tmp_path) as found:
        yield found
