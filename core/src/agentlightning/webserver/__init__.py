"""Parts that the HTTP servers of store, gateway and engine share: guard, bodies, log, process settings."""

from __future__ import annotations

import logging
from typing import Any, Final

from aiohttp import http_exceptions, web

from agentlightning.webserver.loopback import address, interface


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """Logs a malformed request as one line that names the error; everything else unchanged."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, without the exception where its text quotes the request."""
        error = kwargs.get("exc_info")
        if isinstance(error, http_exceptions.HttpProcessingError):
            what = type(error).__name__
            super().log(logging.INFO, "a malformed request was refused: %s", what)
        else:
            super().log(level, msg, *args, **kwargs)


IDLE_SECONDS: Final = 120.0
"""Seconds after which a connection is closed that has no complete request: one that sends half a header, or
nothing. Proxies and clients keep idle connections for shorter.
"""
_LOG: Final = ServerLog(logging.getLogger("aiohttp.server"))


def app_runner(app: web.Application, *, handler_cancellation: bool = True, **options: Any) -> web.AppRunner:
    """Make a runner. By default it cancels the handler of a client that hangs up. It leaves bodies compressed
    (see :mod:`.body`), and its log quotes no malformed request.
    """
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=handler_cancellation,
        auto_decompress=False,
        logger=_LOG,
        **{"keepalive_timeout": IDLE_SECONDS, **options},
    )


async def listen(runner: web.AppRunner, host: str = "127.0.0.1", port: int = 0, **options: Any) -> str:
    """Bind ``host`` and ``port`` (0: a free one) and return the base URL. ``OSError``: the port is taken.
    For ``127.0.0.1`` it is ``::1`` on a machine with IPv6 alone.
    """
    host = interface(host)
    await runner.setup()
    await web.TCPSite(runner, host, port, **options).start()
    return f"http://{address(host)}:{runner.addresses[0][1]}"
