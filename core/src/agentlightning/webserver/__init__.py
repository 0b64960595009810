"""Parts that the HTTP servers of store, gateway and engine share: guard, bodies, log, process settings."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from agentlightning.webserver.log import LOG


def app_runner(app: web.Application, *, handler_cancellation: bool = True, **options: Any) -> web.AppRunner:
    """Make a runner. By default it cancels the handler of a client that hangs up. It leaves bodies compressed
    (see :mod:`.body`), and its log quotes no malformed request.
    """
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=handler_cancellation,
        auto_decompress=False,
        logger=LOG,
        **options,
    )


async def listen(runner: web.AppRunner, host: str = "127.0.0.1", port: int = 0, **options: Any) -> str:
    """Bind ``host`` and ``port`` (0: a free one) and return the base URL. ``OSError``: the port is taken."""
    await runner.setup()
    await web.TCPSite(runner, host, port, **options).start()
    return f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"
