"""A scripted model server on the loopback, for running the real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

Script = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], dict[str, Any]]


@dataclass
class ScriptedModel:
    """Answers chat completions with ``script(messages, tools)`` and keeps the requests."""

    script: Script | None = None
    endpoint: str = ""
    api_key: str = "test-key"
    model: str = "tiny"
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        assert self.script is not None
        message = self.script(body["messages"], body.get("tools"))
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return web.json_response(
            {
                "id": f"chatcmpl-{len(self.requests)}",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )


@pytest.fixture
async def scripted_model() -> AsyncIterator[ScriptedModel]:
    model = ScriptedModel()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    model.endpoint = f"http://{host}:{port}/v1"
    yield model
    await runner.cleanup()
