"""A run: what came of it, curves of its steps with intervals, counts by reason, its configuration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from agentlightning.algorithms.intervals import t_quantile
from agentlightning.types import StepReport
from agl_audit.behaviour.rollout import FIGURES
from agl_audit.run import OpenRun
from agl_audit.run_list import summarise
from agl_dashboard.data.places import NoSuchPlace
from agl_dashboard.drawing.chart import Chart, Point, chart, leading
from agl_dashboard.pages.budget import budget_of
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import path, render

CHARTS: Final = (
    ("Loss", ("loss",), "the objective of the update, as the recipe defines it"),
    ("Gradient norm", ("grad_norm",), "before clipping"),
    ("Entropy", ("entropy",), "mean over the policy's tokens, in nats"),
    ("Turns and tools", ("behaviour/turns", "behaviour/tool_calls"), "of a rollout, in the mean"),
    ("Tools that failed", ("behaviour/tool_failures",), "share of the tools that ran"),
    ("Length of answers", ("behaviour/answer_tokens",), "tokens, in the mean"),
    ("Cut answers", ("behaviour/cut",), "share that ended at their limit of tokens"),
    (
        "Distinct action sequences",
        ("behaviour/distinct", "behaviour/distinct_in_group"),
        "shares of a step's rollouts, and of a group's",
    ),
    ("Change of the policy", ("approx_kl", "clip_fraction", "kl_reference"), "within one update"),
    ("Trained tokens", ("tokens_trained", "tokens_zero_advantage"), "with and without an advantage"),
    ("Logprob gap", ("logprob_gap_max", "logprob_gap_mean"), "trainer against engine, before the update"),
    ("Age of tokens", ("staleness_mean", "staleness_max"), "in versions of the policy"),
    ("Size of advantages", ("advantage_abs_mean",), "mean of absolute values"),
    ("Tokens spent", ("budget/tokens",), "of prompts and answers, against the run's budget"),
    ("Money spent", ("budget/money",), "in the currency of the prices"),
)
"""Title, metrics, and what they are."""
FAMILIES: Final = {
    "left_out": "Calls left out of training",
    "failed": "Rollouts that failed",
    "retried": "Attempts that were repeated",
    "merge_failures": "Calls that began a row of their own",
    "verdicts": "Fidelity of calls",
    "reward_unused": "Rewards that were not used",
}
"""First part of a metric's name → what its counts count."""


class Counts(NamedTuple):
    """A family of counts, over all steps of a run."""

    name: str
    title: str
    rows: list[tuple[str, int]]
    total: int


class Evaluated(NamedTuple):
    """One evaluation of a run's record."""

    batch: str
    name: str
    version: int | None
    n: int
    reward: float
    ci: tuple[float, float] | None
    interval: str
    """How the interval was computed, or why not."""
    failed: int
    left_out: int
    step: float
    greedy: bool
    """Of the policy, as it is served: not sampled, no oracle and no chance."""
    of: str = ""
    """The named set; empty: the held-out tasks."""


async def page(request: web.Request) -> web.Response:
    """The overview of a run."""
    context, place = context_of(request), request.match_info["place"]
    run = await context.places.run(place, request.match_info["run"])
    reports = await run.store.query_steps(run.run_id)
    index = await context.index(place)
    again = not index.whole
    statuses = await index.facets(run.run_id, "status")
    if not run.info and not statuses:
        raise NoSuchPlace(f"the store has no run {run.run_id!r}")
    evaluations = evaluations_of(run)
    values = {
        "title": run.run_id,
        "trail": crumbs(place, run.run_id)[:1],
        "tabs": tabs(place, run.run_id, "overview"),
        "place": place,
        "run": run,
        "line": summarise({**run.info, "run_id": run.run_id}, reports, run.store, context.places.find(place)),
        "evaluations": evaluations,
        "charts": charts(reports, evaluations),
        "counts": counts(reports),
        "budget": budget_of(run.info, reports),
        "statuses": statuses,
        "again": again,
        "summary": run.info.get("summary") or {},
        "seconds": phase_seconds(reports),
        "live": f"/s/{place}/events",
    }
    return render(request, "run.html", values)


async def configuration(request: web.Request) -> web.Response:
    """Everything that the run recorded about itself at its start."""
    context, place = context_of(request), request.match_info["place"]
    run = await context.places.run(place, request.match_info["run"])
    values = {
        "title": f"Configuration of {run.run_id}",
        "trail": crumbs(place, run.run_id),
        "tabs": tabs(place, run.run_id, "configuration"),
        "sections": sections(run.info),
        "run": run,
    }
    return render(request, "configuration.html", values)


def tabs(place: str, run: str, here: str) -> list[tuple[str, str, bool]]:
    """Return name, address and whether it is shown, of each page of a run."""
    base = ("s", place, "runs", run)
    pages = {
        "overview": ("Overview", path(*base)),
        "rollouts": ("Rollouts", path(*base, "rollouts")),
        "ledger": ("Ledger", path(*base, "ledger")),
        "configuration": ("Configuration", path(*base, "configuration")),
        "resources": ("Resources", path("s", place, "resources")),
        "machines": ("Machines", path("s", place, "machines")),
    }
    return [(title, address, name == here) for name, (title, address) in pages.items()]


def charts(reports: Sequence[StepReport], evaluations: Sequence[Evaluated]) -> list[Chart]:
    """Return every curve that has a value."""
    policies = sorted({report.policy for report in reports})

    def series(name: str) -> list[tuple[str, list[Point]]]:
        found = []
        for policy in policies:
            mine = [r for r in reports if r.policy == policy and name in r.metrics]
            points = [Point(r.step + 1, r.metrics[name]) for r in mine]
            word = FIGURES.get(name, name)
            found.append((word if len(policies) == 1 else f"{word} · {policy}", points))
        return found

    found = reward_chart(reports, evaluations)
    for title, names, about in CHARTS:
        found.append(chart(title, [one for name in names for one in series(name)], about))
    phases = sorted({phase for report in reports for phase in report.seconds})
    spent = [
        (phase, [Point(r.step + 1, r.seconds[phase]) for r in reports if phase in r.seconds])
        for phase in phases
    ]
    found.append(chart("Seconds of a step", spent, "by phase"))
    return [one for one in found if one is not None]


def reward_chart(reports: Sequence[StepReport], evaluations: Sequence[Evaluated]) -> list[Chart | None]:
    """Return the curve of the training reward with its 95 % interval, and the held-out evaluations."""
    first = {report.step: report for report in reversed(reports)}  # the rewards belong to all policies alike
    training = [point for _, report in sorted(first.items()) if (point := reward_point(report)) is not None]
    held_out = held_out_points(evaluations)
    sets = sorted({e.of for e in evaluations if e.of})
    return leading(
        "Reward",
        [
            ("training", training),
            ("held out", held_out),
            *((f"on {name}", held_out_points(evaluations, name)) for name in sets),
        ],
        "mean of a step's rollouts, with 95 % intervals by Student's t; evaluations with their own intervals",
    )


def held_out_points(evaluations: Sequence[Evaluated], of: str = "") -> list[Point]:
    """Return the curve of the greedy evaluations on a named set; of none: on the held-out tasks."""
    chosen = [e for e in evaluations if e.greedy and e.of == of]
    return sorted(Point(e.step, e.reward, *(e.ci or (None, None))) for e in chosen)


def reward_point(report: StepReport) -> Point | None:
    """Return a step's mean reward, with its interval by Student's t where there are several rewards, as if
    these were independent.
    """
    mean = report.metrics.get("reward_mean")
    if mean is None or not math.isfinite(mean):
        return None
    n, spread = report.metrics.get("reward_count", 0), report.metrics.get("reward_std")
    if spread is None or n < 2:
        return Point(report.step + 1, mean)
    room = t_quantile(int(n) - 1) * spread / math.sqrt(n)
    return Point(report.step + 1, mean, mean - room, mean + room)


def evaluations_of(run: OpenRun) -> list[Evaluated]:
    """Return the evaluations of a run's record, in the order of the policy's versions."""
    found = []
    last = run.info.get("steps") or 0
    headroom = set((run.info.get("summary") or {}).get("headroom") or {}) | {"oracle", "random"}
    for batch, entry in (run.info.get("evaluations") or {}).items():
        told = entry.get("evaluation") or {}
        version = entry.get("version")
        name = str(told.get("name", batch))
        ci = told.get("ci")
        found.append(
            Evaluated(
                batch=batch,
                name=name,
                version=version,
                n=int(told.get("n", 0)),
                reward=float(told.get("reward", math.nan)),
                ci=(float(ci[0]), float(ci[1])) if ci else None,
                interval=str(told.get("interval", "")),
                failed=int(told.get("failed", 0)),
                left_out=int(told.get("left_out", 0)),
                step=float(version if version is not None else last),
                greedy=name not in headroom and not name.endswith("-sampled"),
                of=name.partition("/")[2],
            )
        )
    return sorted(found, key=lambda one: (one.step, one.name))


def counts(reports: Iterable[StepReport]) -> list[Counts]:
    """Return the counts by reason, summed over the steps; the reports of several policies share theirs."""
    sums: dict[str, Counter[str]] = {family: Counter() for family in FAMILIES}
    seen: set[int] = set()
    for report in reports:
        shared = report.step in seen
        seen.add(report.step)
        for name, value in report.metrics.items():
            family, slash, reason = name.partition("/")
            if slash and family in sums and (family == "left_out" or not shared):
                sums[family][reason] += int(value)
    found = []
    for family, title in FAMILIES.items():
        if rows := [(reason, n) for reason, n in sums[family].most_common() if n]:
            found.append(Counts(family, title, rows, sum(n for _, n in rows)))
    return found


def phase_seconds(reports: Iterable[StepReport]) -> list[tuple[str, float]]:
    """Return the seconds of each phase, summed over the steps."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.seconds)
    return sorted(total.items(), key=lambda pair: -pair[1])


def sections(info: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Return the record of a run as tables of names and values, but for what the overview shows."""
    plain, tables = [], []
    for name, value in info.items():
        if name in ("evaluations", "summary", "note"):
            continue
        if isinstance(value, dict) and value:
            tables.append((name, flat(value)))
        else:
            plain.append((name, value))
    return [("run", plain), *tables]


def flat(value: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Return nested objects as one list of dotted names and values."""
    found: list[tuple[str, Any]] = []
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            found += flat(inner, f"{before}{name}.")
        else:
            found.append((f"{before}{name}", inner))
    return found
