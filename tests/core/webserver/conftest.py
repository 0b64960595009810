"""A store and a gateway over HTTP, with a scripted engine behind the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agl_cluster.roles import Role, RoleTokens
from agl_cluster.store.server import ServedStore, start

SECRET = b"0123456789abcdef0123456789abcdef"


class World(NamedTuple):
    """What a test sends to: a store and a gateway, with the key of one attempt and a token of the store."""

    store: SQLiteStore
    served: ServedStore
    gateway: Gateway
    key: str
    ids: tuple[str, str]
    token: str

    async def stored(self) -> str:
        """How much there is of everything that requests may add."""
        found = await self.store.statistics()
        kinds = "rollouts", "attempts", "calls", "spans", "workers", "resources", "runs"
        return ", ".join(f"{name}: {found[name]}" for name in kinds)


async def _engine() -> web.AppRunner:
    """Answers every request the same, whatever it asks."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        said = (
            {"message": {"role": "assistant", "content": "hi"}} if "chat" in request.path else {"text": "hi"}
        )
        choice = {"index": 0, "finish_reason": "stop", "token_ids": [7], **said}
        return web.json_response({"id": "c", "model": "tiny", "prompt_token_ids": [1], "choices": [choice]})

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    """A world; ``AGL_SECRET`` must be set to :data:`SECRET`."""
    store = SQLiteStore(folder / "store.sqlite")
    served = await start(store, port=0)
    lease = await store.start_rollout({"q": 1}, worker_id="w")
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    gateway = Gateway(store, Keys(SECRET))
    engine = await _engine()
    gateway.add_route(Upstream(url=f"http://127.0.0.1:{engine.addresses[0][1]}/v1", model="tiny"))
    await gateway.start()
    token = RoleTokens(SECRET).derive(Role.ADMIN)
    info = AttemptInfo(rollout_id=ids[0], attempt_id=ids[1], fence=lease.attempt.fence)
    try:
        yield World(store, served, gateway, gateway.open_attempt(info), ids, token)
    finally:
        await gateway.stop()
        await engine.cleanup()
        await served.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    async with opened(tmp_path) as found:
        yield found
