"""Runs beside each other: their curves in one picture, and where their configurations differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from agentlightning.types import StepReport
from agl_audit.run import OpenRun
from agl_dashboard.data.query import BadQuery
from agl_dashboard.drawing.chart import Chart, Point, chart, leading
from agl_dashboard.pages.run import CHARTS, Evaluated, evaluations_of, flat, held_out_points, reward_point
from agl_dashboard.server.context import context_of
from agl_dashboard.server.render import path, render

MOST: Final = 6
_OWN: Final = frozenset(
    {"run_id", "create_time", "update_time", "evaluations", "summary", "note", "resources"}
)
"""Entries of a record that differ between any two runs, or are results."""


class Compared(NamedTuple):
    """A run of the comparison."""

    name: str
    address: str
    run: OpenRun
    reports: list[StepReport]
    evaluations: list[Evaluated]


async def page(request: web.Request) -> web.Response:
    """The comparison of the runs ``?run=place/run&run=…``."""
    context = context_of(request)
    asked = list(dict.fromkeys(request.query.getall("run", [])))
    if not 2 <= len(asked) <= MOST:
        raise BadQuery(f"choose two to {MOST} runs; {len(asked)} were chosen")
    found = []
    for one in asked:
        place, _, run_id = one.partition("/")
        run = await context.places.run(place, run_id)
        if not run.info:
            raise BadQuery(f"there is no run {one[:200]!r}")
        reports = await run.store.query_steps(run_id)
        found.append(Compared(run_id, path("s", place, "runs", run_id), run, reports, evaluations_of(run)))
    values = {
        "title": "Comparison",
        "trail": [("Runs", "/")],
        "runs": found,
        "charts": charts(found),
        "differences": differences([one.run.info for one in found]),
    }
    return render(request, "comparison.html", values)


def charts(runs: Sequence[Compared]) -> list[Chart]:
    """Return the curves of all runs, a picture for each metric that any of them has."""
    rewards = [(one.name, _rewards(one.reports)) for one in runs]
    held_out = [(one.name, held_out_points(one.evaluations)) for one in runs]
    found = [
        *leading("Training reward", rewards, "with 95 % intervals of the mean"),
        chart("Held-out reward", held_out, "over versions of the policy, with 95 % intervals"),
    ]
    for title, names, about in CHARTS:
        series = [(one.name, _metric(one.reports, names[0])) for one in runs]
        found.append(chart(title, series, f"{names[0].replace('_', ' ')}, {about}"))
    return [one for one in found if one is not None]


def _rewards(reports: Sequence[StepReport]) -> list[Point]:
    first = {report.step: report for report in reversed(reports)}
    return [point for _, report in sorted(first.items()) if (point := reward_point(report)) is not None]


def _metric(reports: Sequence[StepReport], name: str) -> list[Point]:
    return [Point(report.step + 1, report.metrics[name]) for report in reports if name in report.metrics]


def differences(infos: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return dotted name and value of each run, for what is not the same in all."""
    tables = [dict(flat({name: value for name, value in info.items() if name not in _OWN})) for info in infos]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = [(name, [table.get(name, "–") for table in tables]) for name in names]
    return [(name, values) for name, values in rows if any(value != values[0] for value in values)]
