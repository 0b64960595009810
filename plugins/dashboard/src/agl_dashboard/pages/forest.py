"""The forest of a rollout: what merged into rows, what broke and why."""

from __future__ import annotations

from typing import NamedTuple

from aiohttp import web

from agentlightning.credit.eligibility import weighed_calls
from agentlightning.credit.forest import build_forest
from agentlightning.credit.merge_failures import MERGE_FAILURES
from agentlightning.types import Rollout
from agl_audit.explanation.advantage import REASONS
from agl_audit.explanation.recomputed_step import recompute_step
from agl_audit.run import OpenRun
from agl_dashboard.drawing.forest import Drawing, Left, draw
from agl_dashboard.pages.rollout import common
from agl_dashboard.server.context import context_of
from agl_dashboard.server.render import render


class Drawn(NamedTuple):
    """A forest on a page."""

    drawing: Drawing
    rows: int
    calls: int
    failures: dict[str, int]
    note: str
    """Why there is none, or that it is not as it was trained."""


async def page(request: web.Request) -> web.Response:
    """The drawing, and a table of the reasons."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    found = await context.compute(place, run.run_id, lambda one: drawn(one, rollout))
    values = {**common(request, place, run, rollout, "forest"), "found": found, "reasons": MERGE_FAILURES}
    return render(request, "forest.html", values)


async def drawn(run: OpenRun, rollout: Rollout) -> Drawn:
    """Build the forest of a rollout's trained calls, as its step did."""
    step = await recompute_step(run, rollout)
    if step.batch is None:
        return Drawn(Drawing(), 0, 0, {}, step.note)
    trained = {s.call_id for row in step.batch.rows for s in row.segments if s.trained}
    mine = [call for call in step.record.calls if call.call_id in trained]
    recipe = run.recipe
    forest = build_forest(
        mine, merge=recipe.merge, temperature=recipe.temperature, weighed=weighed_calls(mine, recipe)
    )
    left = []
    for call in step.record.calls:
        if call.call_id not in trained:
            reason = step.out.get(call.call_id, "not trained")
            left.append(Left(call, reason, REASONS.get(reason, "the credit rule passed it over")))
    return Drawn(draw(forest, left), len(forest.paths), len(mine), forest.merge_failures, step.note)
