"""A rollout: what each attempt did, on a timeline and as a tree; and how it was credited."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from aiohttp import web

from agentlightning.store.pages import pages
from agentlightning.types import Rollout
from agl_audit.attempt_tree import attempt_trees
from agl_audit.behaviour.rollout import behaviour_of
from agl_audit.explanation.explain import explain, rewards
from agl_audit.run import OpenRun
from agl_audit.store.tools import tool_runs, tools_of
from agl_audit.store.trace import query_spans
from agl_audit.targets import Target
from agl_dashboard.data.places import NoSuchPlace
from agl_dashboard.drawing.timeline import timeline
from agl_dashboard.hookspecs import RolloutViewSpec
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import path, render

_log = logging.getLogger(__name__)


async def page(request: web.Request) -> web.Response:
    """The timeline of an attempt, its tree, rewards and errors."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    rollout_id = rollout.rollout_id
    attempts = await run.store.query_attempts(rollout_id)
    wanted = request.query.get("attempt") or (attempts[-1].attempt_id if attempts else None)
    if wanted is not None and all(one.attempt_id != wanted for one in attempts):
        raise NoSuchPlace(f"rollout {rollout_id} has no attempt {wanted!r}")
    trees = await attempt_trees(run, Target(rollout, wanted)) if wanted else []
    spans = (
        [s async for page in pages(partial(query_spans, run.store), rollout_id, wanted) for s in page]
        if wanted
        else []
    )
    calls = {call.call_id: call for call in await run.store.query_calls(rollout_id, wanted)} if wanted else {}
    (record,) = await run.store.records([rollout_id])
    tools = tools_of(record, await tool_runs(run.store, [rollout_id]))
    index = await context.index(place)
    tree = trees[0] if trees else None
    values = {
        **common(request, place, run, rollout, "timeline"),
        "attempts": attempts,
        "attempt": next((one for one in attempts if one.attempt_id == wanted), None),
        "tree": tree,
        "timeline": timeline(tree.roots, spans, calls) if tree else None,
        "calls": calls,
        "rewards": rewards(record),
        "behaviour": behaviour_of(record, run.trained, tools) if rollout.status.final else None,
        "group": await index.group(rollout.group_id) if rollout.group_id else [],
        "live": "" if rollout.status.final else f"/s/{place}/events",
    }
    return render(request, "rollout.html", values)


async def credit(request: web.Request) -> web.Response:
    """Rewards, group, ledger, rows and calls of a rollout, credited again as its step was."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    found = await context.compute(place, run.run_id, lambda one: explain(one, Target(rollout)))
    values = {**common(request, place, run, rollout, "credit"), "found": found}
    return render(request, "credit.html", values)


def common(request: web.Request, place: str, run: OpenRun, rollout: Rollout, here: str) -> dict[str, Any]:
    """Return what every page of a rollout shows."""
    base = ("s", place, "rollouts", rollout.rollout_id)
    tabs = {
        "timeline": ("Timeline", path(*base)),
        "credit": ("Credit", path(*base, "credit")),
        "forest": ("Forest", path(*base, "forest")),
    }
    for spec in views_of(request, rollout):
        tabs[f"view-{spec.name}"] = (spec.title, path(*base, "views", spec.name))
    trail = crumbs(place, run.run_id, ("Rollouts", path("s", place, "runs", run.run_id, "rollouts")))
    return {
        "title": rollout.rollout_id,
        "trail": trail,
        "tabs": [(title, address, name == here) for name, (title, address) in tabs.items()],
        "place": place,
        "run": run,
        "rollout": rollout,
    }


def views_of(request: web.Request, rollout: Rollout) -> list[RolloutViewSpec]:
    """Return the plugins' views that apply to a rollout. One that raises is left out, and logged."""
    found = []
    for spec in context_of(request).places.plugins.table("agl_rollout_views").values():
        try:
            if spec.applies(rollout):
                found.append(spec)
        except Exception:
            _log.exception("the view %s cannot say whether it applies to %s", spec.name, rollout.rollout_id)
    return found
