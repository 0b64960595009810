"""The ledger of a run: every call that was made, step by step, trained or left out with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from aiohttp import web

from agentlightning.types import StepReport
from agl_audit.explanation.advantage import REASONS
from agl_dashboard.pages.run import tabs
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import path, render


class LedgerLine(NamedTuple):
    """One step. It sums if ``made == trained + sum(left_out)``."""

    step: int
    made: int
    trained: int
    left_out: dict[str, int]

    @property
    def sums(self) -> bool:
        """Whether every call is accounted for."""
        return self.made == self.trained + sum(self.left_out.values())


async def page(request: web.Request) -> web.Response:
    """The table, its sums first."""
    context, place = context_of(request), request.match_info["place"]
    run = await context.places.run(place, request.match_info["run"])
    found = lines(await run.store.query_steps(run.run_id))
    total = LedgerLine(0, sum(o.made for o in found), sum(o.trained for o in found), dict(_sum(found)))
    values = {
        "title": f"Ledger of {run.run_id}",
        "trail": crumbs(place, run.run_id),
        "tabs": tabs(place, run.run_id, "ledger"),
        "run": run,
        "lines": found,
        "total": total,
        "reasons": REASONS,
        "rollouts": path("s", place, "runs", run.run_id, "rollouts"),
        "live": path("s", place, "events"),
    }
    return render(request, "ledger.html", values)


def lines(reports: Iterable[StepReport]) -> list[LedgerLine]:
    """Return a line for each step; of several policies' reports the calls are the sum."""
    by_step: dict[int, list[StepReport]] = {}
    for report in reports:
        by_step.setdefault(report.step, []).append(report)
    found = []
    for step, mine in sorted(by_step.items()):
        out: Counter[str] = Counter()
        for report in mine:
            out.update(
                {
                    k.partition("/")[2]: int(v)
                    for k, v in report.metrics.items()
                    if k.startswith("left_out/") and v
                }
            )
        made = sum(int(report.metrics.get("calls", 0)) for report in mine)
        trained = sum(int(report.metrics.get("calls_trained", 0)) for report in mine)
        found.append(LedgerLine(step, made, trained, dict(out)))
    return found


def _sum(found: Iterable[LedgerLine]) -> Counter[str]:
    total: Counter[str] = Counter()
    for line in found:
        total.update(line.left_out)
    return total
