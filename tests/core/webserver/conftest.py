"""A gateway over HTTP with a store of its own, and an engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore

SECRET = b"0123456789abcdef0123456789abcdef"


@dataclass
class World:
    """What a test sends to: a gateway, with its store, and the key of one attempt."""

    store: SQLiteStore
    gateway: Gateway
    key: str
    ids: tuple[str, str]

    async def stored(self) -> str:
        """How much there is of everything that requests may add."""
        read = self.store.db.connection.execute
        kinds = "rollouts", "attempts", "calls", "spans", "workers", "resources", "runs"
        return ", ".join(f"{name}: {read(f'SELECT count(*) FROM {name}').fetchone()[0]}" for name in kinds)


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
    store = SQLiteStore(folder / "store.sqlite")
    lease = await store.start_rollout({"q": 1}, worker_id="w")
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    gateway = Gateway(store, Keys(SECRET))
    engine = await _engine()
    gateway.add_route(Upstream(url=f"http://127.0.0.1:{engine.addresses[0][1]}/v1", model="tiny"))
    await gateway.start()
    info = AttemptInfo(rollout_id=ids[0], attempt_id=ids[1], fence=lease.attempt.fence)
    try:
        yield World(store, gateway, gateway.open_attempt(info), ids)
    finally:
        await gateway.stop()
        await engine.cleanup()
        await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as found:
        yield found
