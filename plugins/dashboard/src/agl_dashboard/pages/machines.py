"""The machinery of a store: queue, workers, what was counted, how long calls took, endpoints of models."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web

from agentlightning.redaction import redacted
from agentlightning.types.work import LLM
from agl_audit.run_list import summarise
from agl_audit.store.statistics import statistics as store_statistics
from agl_audit.store.workers import query_workers
from agl_dashboard.data.gateways import LiveGateway, ask
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import path, render

QUEUE = ("queuing", "preparing", "running", "requeuing", "succeeded", "failed", "cancelled")


async def page(request: web.Request) -> web.Response:
    """All of a store, not of one run."""
    context, place = context_of(request), request.match_info["place"]
    store = await context.places.store(place)
    statistics: dict[str, Any] = await store_statistics(store)
    rollouts = statistics.get("rollouts") or {}
    workers = await query_workers(store, limit=200)
    runs = await _runs(store)
    values = {
        "title": "Machines",
        "trail": crumbs(place),
        "place": place,
        "store": redacted(context.places.find(place).store),
        "statistics": statistics,
        "queue": [(name, rollouts[name]) for name in QUEUE if rollouts.get(name)],
        "workers": workers,
        "work": statistics.get("work") or {},
        "counts": await store.counts(),
        "endpoints": await _endpoints(store),
        "runs": runs,
        "gateways": await _gateways(store, context.places.find(place), runs),
        "now": time.time(),
        "live": path("s", place, "events"),
    }
    return render(request, "machines.html", values)


async def _endpoints(store: Any) -> list[tuple[str, str, LLM]]:
    """Return the model endpoints that agents were given: resources, name, endpoint."""
    return [
        (bundle.resources_id, name, resource)
        for bundle in await store.query_resources(100)
        for name, resource in bundle.resources.items()
        if isinstance(resource, LLM)
    ]


async def _gateways(store: Any, place: Any, runs: list[dict[str, Any]]) -> list[tuple[str, LiveGateway]]:
    """Return what the gateways of the runs that train count now, with their run."""
    training = [
        (one["run"], str(url))
        for one in runs
        if one["gateways"] and summarise(one["info"], [], store, place).status == "running"
        for url in one["gateways"]
    ]
    states = await asyncio.gather(*(ask(url) for _, url in training))
    return [(run, state) for (run, _), state in zip(training, states, strict=True)]


async def _runs(store: Any) -> list[dict[str, Any]]:
    """Return gateway, driver, limits and accounts of the newest runs, as each recorded them."""
    found = []
    for info in await store.query_runs(10):
        summary, about = info.get("summary") or {}, info.get("about") or {}
        found.append(
            {
                "run": info["run_id"],
                "info": info,
                "gateways": about.get("gateways") or [url for url in (about.get("gateway"),) if url],
                "settings": info.get("gateway") or {},
                "driver": info.get("driver"),
                "options": info.get("options") or {},
                "limits": info.get("tries") or {},
                "accounts": summary.get("accounts") or {},
            }
        )
    return found
