"""What the suite's HTTP servers (store, gateway, engine) share: whom they answer, what they read and log."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from agentlightning.webserver.log import LOG


def app_runner(app: web.Application, **options: Any) -> web.AppRunner:
    """What serves ``app``: a handler whose client has gone is cancelled, bodies come as they were sent (see
    :mod:`.body`), and what is logged of a malformed request has none of it.
    """
    return web.AppRunner(
        app, access_log=None, handler_cancellation=True, auto_decompress=False, logger=LOG, **options
    )
