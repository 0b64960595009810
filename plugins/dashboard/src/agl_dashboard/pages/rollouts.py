"""The rollouts of a run: filters, search, order and pages, in SQL."""

from __future__ import annotations

from aiohttp import web

from agl_dashboard.data.query import ORDERS, SIZES, RolloutQuery
from agl_dashboard.pages.run import tabs
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import render

COLUMNS = (
    ("", "Rollout"),
    ("task", "Task"),
    ("arrival", "Batch"),
    ("status", "Status"),
    ("reward", "Reward"),
    ("calls", "Calls"),
    ("tokens", "Tokens"),
    ("seconds", "Time"),
    ("attempts", "Attempts"),
)
"""Order by which a heading sorts, and the heading."""


async def page(request: web.Request) -> web.Response:
    """One page of the list."""
    context, place, run = context_of(request), request.match_info["place"], request.match_info["run"]
    query = RolloutQuery.read(run, request.query)
    index = await context.index(place)
    again = not index.whole  # asked before the lines are: a refresh may end meanwhile
    found = await index.page(query)
    values = {
        "title": f"Rollouts of {run}",
        "trail": crumbs(place, run),
        "tabs": tabs(place, run, "rollouts"),
        "place": place,
        "run": run,
        "query": query,
        "found": found,
        "pages": max(1, -(-found.total // query.size)),
        "columns": COLUMNS,
        "orders": ORDERS,
        "sizes": SIZES,
        "statuses": await index.facets(run, "status"),
        "modes": await index.facets(run, "mode"),
        "again": again,
        "live": f"/s/{place}/events",
    }
    return render(request, "rollouts.html", values)
