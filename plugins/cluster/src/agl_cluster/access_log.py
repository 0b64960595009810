"""The access log of store and gateway: one line of JSON a request, where ``AGL_ACCESS_LOG`` asks for it.

``AGL_ACCESS_LOG`` is a file, or ``-`` for stderr; by default there is no log. Invariant: a line holds no
header, no query and no body, hence no secret.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TextIO

import msgspec
from aiohttp import web

VARIABLE: Final = "AGL_ACCESS_LOG"
_log = logging.getLogger(__name__)


class AccessLog:
    """Writes the lines of one server. Several processes may append to one file: a line is one write."""

    def __init__(self, server: str, place: str) -> None:
        self._server = server
        self._file: TextIO | None = sys.stderr if place == "-" else self._opened(Path(place).expanduser())

    @staticmethod
    def _opened(path: Path) -> TextIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8", buffering=1)

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None and file is not sys.stderr:
            file.close()

    def write(self, request: web.Request, status: int, size: int | None, seconds: float) -> None:
        """Write the line of a request."""
        if self._file is None:
            return
        line = {
            "time": round(time.time(), 3),
            "server": self._server,
            "from": request.remote,
            "method": request.method,
            "path": request.path[:500],
            "status": status,
            "sent": size,
            "seconds": round(seconds, 4),
        }
        try:
            self._file.write(msgspec.json.encode(line).decode() + "\n")
        except OSError as error:
            _log.error("the access log ends: it cannot be written: %s", error)
            self.close()


def log_requests(app: web.Application, server: str) -> None:
    """Log the requests of ``app``, which is ``server``, until it is cleaned up, if ``AGL_ACCESS_LOG`` asks
    for it.
    """
    if not (place := os.environ.get(VARIABLE)):
        return
    log = AccessLog(server, place)

    async def close(_: web.Application) -> None:
        log.close()

    @web.middleware
    async def logged(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        began, status, size = time.perf_counter(), 499, None  # 499: the client hung up
        try:
            response = await handler(request)
            status, size = response.status, response.body_length or response.content_length
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            log.write(request, status, size, time.perf_counter() - began)

    app.middlewares.insert(0, logged)
    app.on_cleanup.append(close)
