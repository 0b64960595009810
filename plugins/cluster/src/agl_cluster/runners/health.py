"""The probes of a runner that a supervisor asks: ``/healthz`` and ``/readyz``.

A runner is alive while its event loop turns, and ready while the store answers its heartbeats.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from agentlightning.runner.runner import Runner
from agentlightning.types import UsageError
from agentlightning.webserver import app_runner, listen
from agentlightning.webserver.loopback import cannot_listen
from agl_cluster.probes import Probes


@asynccontextmanager
async def serving_health(runner: Runner, place: str | None) -> AsyncIterator[str | None]:
    """Serve the probes of ``runner`` at ``place``, ``host:port``, and yield their base URL; ``None``: none
    are served. They tell nothing but whether it is well, and need no token.
    """
    if place is None:
        yield None
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--health {place!r}: give host:port, e.g. 0.0.0.0:8081")

    async def problems() -> list[str]:
        return ["the store does not answer heartbeats"] if runner.store_is_silent else []

    app = web.Application()
    Probes(problems).add_to(app)
    served = app_runner(app)
    try:
        yield await listen(served, host := host.removeprefix("[").removesuffix("]"), int(port))
    except OSError as error:
        raise cannot_listen("the health page", host, int(port), error, "--health") from error
    finally:
        await served.cleanup()
