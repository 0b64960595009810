"""What changed: a stream of server-sent events that tells a page when its store has.

The server follows the file's commits (SQLite's ``data_version``, which any process's commit changes) or, of a
store behind a URL, its statistics. A page then asks again for itself and takes over the parts that differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aiohttp import web

from agentlightning.store import SQLiteStore, Store
from agentlightning.types import UsageError
from agl_audit.store.statistics import statistics as store_statistics

EVERY: Final = 0.5
"""Seconds between two looks at a file."""
EVERY_REMOTE: Final = 2.0
QUIET: Final = 15.0
"""Seconds after which a comment keeps the connection open."""


async def changes(store: Store) -> AsyncIterator[str]:
    """Yield a new mark at once and after each change of a store."""
    if isinstance(store, SQLiteStore) and store.db.path is not None:
        async for mark in _file_changes(store.db.path):
            yield mark
        return
    last = None
    while True:
        try:
            found = json.dumps([await store_statistics(store), len(await store.query_runs())], default=str)
        except UsageError as error:
            found = f"unreachable: {error}"
        if found != last:
            last = found
            yield str(hash(found))
        await asyncio.sleep(EVERY_REMOTE)


async def _file_changes(path: Path) -> AsyncIterator[str]:
    last = None
    with contextlib.closing(
        sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        while True:
            found = connection.execute("PRAGMA data_version").fetchone()[0]
            if found != last:
                last = found
                yield str(found)
            await asyncio.sleep(EVERY)


async def stream(request: web.Request, store: Store) -> web.StreamResponse:
    """Send an event ``changed`` for each change until the page is closed. The first only says the state."""
    answer = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "X-Content-Type-Options": "nosniff",
        }
    )
    await answer.prepare(request)
    marks = changes(store)
    kind = "state"
    next_mark: asyncio.Task[str] | None = None
    try:
        while True:
            next_mark = next_mark or asyncio.ensure_future(anext(marks))
            done, _ = await asyncio.wait({next_mark}, timeout=QUIET)
            if not done:
                await answer.write(b": quiet\n\n")
                continue
            await answer.write(f"event: {kind}\ndata: {next_mark.result()}\n\n".encode())
            next_mark, kind = None, "changed"
    except (ConnectionResetError, asyncio.CancelledError):
        return answer
    finally:
        if next_mark is not None:
            next_mark.cancel()
            await asyncio.gather(next_mark, return_exceptions=True)
        await marks.aclose()  # type: ignore[attr-defined]
