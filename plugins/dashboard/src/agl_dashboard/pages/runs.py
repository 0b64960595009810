"""The first page: every run of every store, newest first."""

from __future__ import annotations

import os

from aiohttp import web

from agl_audit.locations import RunLocation
from agl_audit.run_list import RunSummary, list_runs
from agl_dashboard.server.context import context_of
from agl_dashboard.server.render import render

_known: dict[str, tuple[object, list[RunSummary]]] = {}
"""Store → its state when its runs were listed, and the list. A store in use is listed anew each time."""


async def page(request: web.Request) -> web.Response:
    """Every run, and the form that compares two of them."""
    places = context_of(request).places
    lines = []
    for key, place in places.list():
        lines += [(key, line) for line in await _lines(place)]
    lines.sort(key=lambda pair: pair[1].when or 0.0, reverse=True)
    running = next((key for key, line in lines if line.status == "running"), "")
    values = {
        "title": "Runs",
        "lines": lines,
        "what": places.what or "runs/",
        "live": f"/s/{running}/events" if running else "",
    }
    return render(request, "runs.html", values)


async def _lines(place: RunLocation) -> list[RunSummary]:
    state = _state(place.store)
    held = _known.get(place.store)
    if held is not None and state is not None and held[0] == state:
        return held[1]
    found = await list_runs([place])
    if state is not None and not any(line.status in ("running", "unreadable") for line in found):
        _known[place.store] = (state, found)
    return found


def _state(store: str) -> object:
    """Return what changes when a file is written; ``None``: it is no file."""
    if "://" in store:
        return None
    found = []
    for name in (store, f"{store}-wal"):
        try:
            one = os.stat(name)
            found.append((one.st_ino, one.st_size, one.st_mtime_ns))
        except OSError:
            found.append((0, 0, 0))
    return found
