"""The channel between the driver and verl: the child asks, the driver answers. Loopback, one secret a run.

``GET /next`` blocks until the driver wants something and returns one order; ``POST /ready`` and ``POST
/loaded`` say what has been done; ``POST /collect`` brings what became of the step before and blocks until the
next one's rows are there. An error of the driver is the answer 500 with its text, and ends the child.
"""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from agentlightning.webserver import app_runner, listen

ADDRESS, SECRET = "AGL_VERL_CHANNEL", "AGL_VERL_SECRET"
"""Variables by which the child, and the workers that Ray starts for it, find the channel."""

Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class ChannelServer:
    """The driver's end: ``handlers`` by path; each gets the posted JSON and returns JSON, bytes, or
    an iterator of bytes, which is read in threads.
    """

    def __init__(self, secret: str, handlers: dict[str, Handler]) -> None:
        self._secret = secret
        self._handlers = handlers
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Serve; returns the address."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{what}", self._serve)
        self._runner = app_runner(app, shutdown_timeout=0.5)
        return await listen(self._runner)

    async def stop(self) -> None:
        """Stop serving; who waits for an answer gets none."""
        if self._runner is not None:
            await self._runner.cleanup()
            await asyncio.sleep(0)  # connections that were cut are closed in the loop's next turn

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {self._secret}".encode()):
            return web.json_response({"error": "not the channel's secret"}, status=403)
        handler = self._handlers.get(request.match_info["what"])
        if handler is None:
            return web.json_response({"error": f"no such question: {request.path}"}, status=404)
        try:
            answer = await handler(await request.json())
        except Exception as error:  # the driver itself reports it; the child only has to end
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=500)
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return await _send(request, answer) if isinstance(answer, Iterator) else web.json_response(answer)


async def _send(request: web.Request, pieces: Iterator[bytes]) -> web.StreamResponse:
    """Send pieces, each made in a thread when the one before is on its way: neither making nor sending holds
    the loop for longer than one piece takes.
    """
    response = web.StreamResponse()
    await response.prepare(request)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        await response.write(piece)
    await response.write_eof()
    return response


class ChannelClosed(RuntimeError):
    """The driver has ended, or refused to go on."""


class Channel:
    """The child's end. Each question has a connection of its own, and waits as long as the driver does."""

    def __init__(self, address: str | None = None, secret: str | None = None) -> None:
        self._address = urlsplit(address or os.environ[ADDRESS])
        self._secret = secret or os.environ[SECRET]

    def ask(self, what: str, /, **question: Any) -> bytes:
        """The answer's body. Raises ChannelClosed."""
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port)
        headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        try:
            connection.request("POST", f"/{what}", json.dumps(question), headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ChannelClosed(f"the driver does not answer {what}: {error!r}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ChannelClosed(f"the driver refused {what}: {body.decode(errors='replace')}")
        return body

    def order(self) -> dict[str, Any]:
        """The next order."""
        found: dict[str, Any] = json.loads(self.ask("next"))
        return found
