"""Starts and stops the store's HTTP server, for processes and machines that do not write the file."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import typing
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from agentlightning.log_limit import limit_libraries
from agentlightning.store.base import StoreError
from agentlightning.store.sql.store import SQLStore
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.webserver import app_runner, enlarge_young_generation, listen, restore_thresholds
from agentlightning.webserver.loopback import ExposedServer, cannot_listen, check_interface, check_token
from agl_cluster.store.access import StoreAccess
from agl_cluster.store.app import create_app


class ServedStore(typing.NamedTuple):
    """A store and its running server."""

    store: SQLStore
    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        """Finish the requests under way, then close the store."""
        self.store.waiters.wake_all()
        await self.runner.cleanup()
        await self.store.close()


async def start(
    path: str | Path | SQLStore | None = None,
    host: str = "127.0.0.1",
    port: int = 4747,
    token: str | None = None,
) -> ServedStore:
    """Open the store (or take an open one) and serve it; ``port=0`` takes a free port. The file's lock tells
    the URL to other processes that want to write the file. Requests must bear ``token`` (role admin), or a
    token or key under ``AGL_SECRET``, where these are given.
    """
    try:
        token = check_token(token, "AGL_TOKEN")
        guarded = token is not None or "AGL_SECRET" in os.environ
        check_interface("the store", host, guarded=guarded, variable="AGL_TOKEN or AGL_SECRET")
    except ExposedServer as error:
        raise StoreError(str(error)) from None
    store = path if isinstance(path, SQLStore) else SQLiteStore(path)
    access = StoreAccess.from_env(token, store.db.path if isinstance(store, SQLiteStore) else None)
    runner = app_runner(create_app(store, access), shutdown_timeout=5.0)
    limit_libraries()
    try:
        url = await listen(runner, host, port)
    except OSError as error:
        await runner.cleanup()
        await store.close()
        raise StoreError(str(cannot_listen("the store", host, port, error, "--port"))) from error
    if isinstance(store, SQLiteStore) and store.db.lock is not None:
        store.db.lock.announce(url)  # for those who ask who writes the file
    await store.expire()  # from now on the store ends overdue attempts by itself, before anybody asks
    return ServedStore(store, url, runner)


async def serve(
    path: str | Path | SQLStore | None = None,
    host: str = "127.0.0.1",
    port: int = 4747,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or cancellation, then close. ``ready`` is called with the URL once the
    server listens.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except (RuntimeError, ValueError):  # not the main thread: cancellation ends it
            break
    served = await start(path, host, port, token)
    gc.collect()
    gc.freeze()  # loaded modules stay; with rarer collections a request takes a sixth less CPU
    enlarge_young_generation()
    try:
        if ready is not None:
            ready(served.url)
        await stop.wait()
    finally:
        restore_thresholds()
        gc.unfreeze()
        await served.close()
