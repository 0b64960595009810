"""Parts that the HTTP servers of store, gateway and engine share: guard, bodies, log, process settings.

Each call under way holds some hundred objects that Python's garbage collector tracks. Many concurrent calls
outlive its young generations, and the whole process is scanned again and again: a tenth of a call's CPU at 64
at once, and pauses. Almost nothing of a call is cyclic. So the young generation is enlarged while any gateway
or store server of the process runs, and restored when the last one stops.
"""

from __future__ import annotations

import gc
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


YOUNG_THRESHOLD = 20_000
"""Objects allocated and not freed before a collection; Python's default is 700 (3.11) to 2,000."""
_started = 0
_before: tuple[int, int, int] = gc.get_threshold()


def enlarge_young_generation() -> None:
    """Call when a server starts. Larger settings, and a disabled collector, stay as they are."""
    global _started, _before
    _started += 1
    if _started == 1:
        _before = gc.get_threshold()
        if 0 < _before[0] < YOUNG_THRESHOLD:
            gc.set_threshold(YOUNG_THRESHOLD, *_before[1:])


def restore_thresholds() -> None:
    """Call when a server stops."""
    global _started
    _started -= 1
    if not _started and gc.get_threshold() == (
        YOUNG_THRESHOLD,
        *_before[1:],
    ):  # else it was set meanwhile
        gc.set_threshold(*_before)
