"""``GET /healthz`` and ``GET /readyz``, alike at every server of the suite.

A process is *healthy* while it answers at all; a supervisor restarts one that is not. It is *ready* while it
can do its work; a balancer sends requests to ready ones only. Both need no token and tell no secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

HEALTH: Final = "/healthz"
READY: Final = "/readyz"

Problems = Callable[[], Awaitable[Sequence[str]]]
"""Returns why the server is not ready; empty: it is."""


class Probes:
    """Answers the two probes. ``problems`` is asked at each ``/readyz``; it must be quick."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 as long as the event loop turns."""
        return web.json_response({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200, or 503 with the reasons."""
        problems = await self._problems()
        if not problems:
            return web.json_response({"status": "ready", "problems": []})
        body = {"status": "not ready", "problems": [*problems]}
        return web.json_response(body, status=503, headers={"Retry-After": "1"})

    def add_to(self, app: web.Application) -> None:
        """Add both routes."""
        app.router.add_get(HEALTH, self.health)
        app.router.add_get(READY, self.ready)
