"""One token explained: from the reward to its share of the loss, as ``agl explain`` does it."""

from __future__ import annotations

from aiohttp import web

from agl_audit.explanation.explain import explain
from agl_audit.targets import Target
from agl_dashboard.data.query import BadQuery
from agl_dashboard.data.tokens import vocabulary
from agl_dashboard.pages.call import find_call
from agl_dashboard.pages.rollout import common
from agl_dashboard.server.context import context_of
from agl_dashboard.server.render import path, render


async def page(request: web.Request) -> web.Response:
    """The explanation of a response token."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    call = await find_call(run, rollout, request.match_info["call"])
    given = request.match_info["token"]
    if not (given.isascii() and given.isdigit()):
        raise BadQuery(f"{given[:40]!r} is no number of a token")
    target = Target(rollout, call.attempt_id, call.call_id, int(given[:12]))
    found = await context.compute(place, run.run_id, lambda one: explain(one, target))
    token = found["token"]
    if token["text"] is None:
        token["text"] = vocabulary(run, call.policy).texts([token["id"]])[0].text
    base = path("s", place, "rollouts", rollout.rollout_id)
    here = f"{base}/calls/{call.call_id}"
    values = {
        **common(request, place, run, rollout, ""),
        "title": f"Token {given} of {call.call_id}",
        "found": found,
        "token": token,
        "call": call,
        "base": here,
    }
    values["trail"] = [*values["trail"], (rollout.rollout_id, base), (call.call_id, here)]
    return render(request, "token.html", values)
