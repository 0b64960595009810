"""``agl store``: serve a store over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import typer

from agentlightning.plugins.manager import store_operation
from agentlightning.plugins.stores import open_store
from agentlightning.redaction import say
from agentlightning.store.base import StoreError
from agentlightning.store.sql.store import SQLStore
from agl_cluster.store import server

_log = logging.getLogger(__name__)
_DAY = 86_400.0


def register(app: typer.Typer) -> None:
    @app.command("store")
    def store(
        path: Annotated[
            str | None,
            typer.Argument(
                help="SQLite file, folder or postgresql://…; default: AGL_STORAGE, else ~/.agent-lightning."
            ),
        ] = None,
        host: Annotated[
            str, typer.Option(help="Address to listen on. Anything but loopback needs AGL_TOKEN.")
        ] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port; 0 picks one.")] = 4747,
        keep_days: Annotated[
            float | None, typer.Option(min=0.0, help="Delete finished runs that are older than so many days.")
        ] = None,
        keep_runs: Annotated[
            int | None, typer.Option(min=0, help="Delete finished runs but the newest so many.")
        ] = None,
    ) -> None:
        """Serve a durable store until SIGTERM or Ctrl-C.

        Clients: agl.open_store("http://localhost:4747").

        With --keep-days or --keep-runs finished runs are deleted at the start and every hour; with both,
        those that neither keeps.
        """
        asyncio.run(_serve(path, host, port, keep_days, keep_runs))


async def _serve(
    path: str | None, host: str, port: int, keep_days: float | None, keep_runs: int | None
) -> None:
    prune = None if keep_days is None and keep_runs is None else store_operation("prune")
    store = open_store(path)
    if not isinstance(store, SQLStore):
        raise StoreError(f"{store!r} is served by another process already: give its URL to the clients")
    pruning: list[asyncio.Task[None]] = []

    def ready(url: str) -> None:
        say(f"agl store on {url}")
        if prune is not None:
            older_than = None if keep_days is None else keep_days * _DAY
            due = partial(prune, store, older_than=older_than, keep_runs=keep_runs)
            pruning.append(asyncio.ensure_future(keep_pruned(due, _tell)))

    try:
        await server.serve(store, host=host, port=port, token=os.environ.get("AGL_TOKEN"), ready=ready)
    finally:
        for task in pruning:
            task.cancel()
        await store.close()


async def keep_pruned(
    prune: Callable[[], Awaitable[dict[str, int]]],
    report: Callable[[dict[str, int]], None],
    every: float = 3600.0,
) -> None:
    """Prune at once and then every ``every`` seconds, until cancelled. ``report`` gets the counts."""
    while True:
        try:
            deleted = await prune()
        except StoreError:
            _log.exception("old runs could not be deleted; the next try is in %g s", every)
        else:
            if any(n for name, n in deleted.items() if name != "kept"):
                report(deleted)
        await asyncio.sleep(every)


def _tell(gone: dict[str, int]) -> None:
    typer.echo(", ".join(f"{n} {name}" for name, n in gone.items() if n and name != "kept") + " deleted")
