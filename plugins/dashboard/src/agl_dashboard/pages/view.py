"""A view that a plugin has of rollouts of its kind, in a frame without scripts, origin or network."""

from __future__ import annotations

from aiohttp import web

from agentlightning.types import Rollout
from agl_dashboard.data.places import NoSuchPlace
from agl_dashboard.hookspecs import RolloutViewSpec
from agl_dashboard.pages.rollout import common, views_of
from agl_dashboard.server.context import context_of
from agl_dashboard.server.headers import FRAME_POLICY
from agl_dashboard.server.render import path, render


async def page(request: web.Request) -> web.Response:
    """The page around the frame."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    spec = _spec(request, rollout)
    frame = path("s", place, "rollouts", rollout.rollout_id, "views", spec.name, "frame")
    values = {**common(request, place, run, rollout, f"view-{spec.name}"), "view": spec.title, "frame": frame}
    return render(request, "view.html", values)


async def frame(request: web.Request) -> web.Response:
    """What the plugin draws."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    spec = _spec(request, rollout)
    body = await context.compute(place, run.run_id, lambda one: spec.render(one, rollout))
    headers = {"Content-Security-Policy": FRAME_POLICY}
    return web.Response(text=body, content_type="text/html", charset="utf-8", headers=headers)


def _spec(request: web.Request, rollout: Rollout) -> RolloutViewSpec:
    name = request.match_info["view"]
    for spec in views_of(request, rollout):
        if spec.name == name:
            return spec
    raise NoSuchPlace(f"no view {name!r} applies to rollout {rollout.rollout_id}")
