"""A server that speaks OpenEnv's protocol: ``environments/counting_server.py`` again, with faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

SCHEMA = {
    "title": "Say",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "number": {"type": "integer"},
        "polite": {"type": "boolean", "default": False},
    },
    "required": ["number"],
    "additionalProperties": False,
}


class Counting:
    """``free``: its sessions; ``broken``: what it answers with instead of observations."""

    def __init__(self, free: int = 2, broken: str | None = None) -> None:
        self.free, self.broken = free, broken
        self.refused = 0

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": SCHEMA})

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        answers = web.WebSocketResponse()
        await answers.prepare(request)
        if self.free == 0:
            self.refused += 1
            await answers.send_json(_error("CAPACITY_REACHED", "all sessions are taken"))
            await answers.close()
            return answers
        self.free -= 1
        try:
            await self._converse(answers)
        finally:
            self.free += 1
        return answers

    async def _converse(self, answers: web.WebSocketResponse) -> None:
        wanted, said = 0, list[int]()
        async for message in answers:
            asked = json.loads(message.data)
            if self.broken is not None:
                await answers.send_str(self.broken)
            elif asked["type"] == "reset":
                wanted, said = asked["data"].get("seed", 0), []
                unlucky = wanted == 13
                shown = {"observation": {"so_far": [], "wanted": wanted}, "reward": None, "done": False}
                await answers.send_json(
                    _error("EXECUTION_ERROR", "thirteen is unlucky") if unlucky else _observed(shown)
                )
            elif not isinstance(asked["data"].get("number"), int):
                await answers.send_json({**_error("VALIDATION_ERROR", "Invalid message")})
            else:
                said.append(asked["data"]["number"])
                right = said == list(range(1, len(said) + 1))
                await answers.send_json(
                    _observed(
                        {
                            "observation": {"so_far": said, "wanted": wanted},
                            "reward": None if wanted == 99 else float(right),
                            "done": not right or len(said) == wanted,
                        }
                    )
                )


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


def _observed(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "observation", "data": data}


@asynccontextmanager
async def serving(counting: Counting) -> AsyncIterator[str]:
    """Serve it; its address."""
    app = web.Application()
    app.router.add_get("/schema", counting.schema)
    app.router.add_get("/ws", counting.socket)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
