"""The table and the plot of finished runs.

A recipe's figures are over the held-out tasks of all its seeds together: ``before`` (of the start policy with
the same seeds) and ``after`` are means of rewards of 0 and 1, ``ci`` is the 95 % interval (Wilson) of
``after``. A recipe has learned on a task if this interval lies above that of ``before``. ``curve`` is the
mean reward of the training rollouts over all steps, the area under the learning curve, with the least and the
greatest of the seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Z = 1.959964
START = "start"
"""The name of the run that evaluates the start policy."""
WIDTH, HEIGHT, LEFT, TOP = 400, 230, 46, 34
COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22",
    "#17becf", "#393b79", "#ad494a",
)  # fmt: skip


def wilson(mean: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of ``n`` trials (Wilson 1927)."""
    centre = mean + Z * Z / (2 * n)
    half = Z * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
    return (centre - half) / (1 + Z * Z / n), (centre + half) / (1 + Z * Z / n)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``task/recipe`` → before, after and interval over its seeds, and whether it learned."""
    starts = {(run["task"], run["seed"]): run for run in runs if run["recipe"] == START}
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if run["recipe"] != START and (run["task"], run["seed"]) in starts:
            groups[f"{run['task']}/{run['recipe']}"].append(run)
    return {
        name: _one(of, [starts[run["task"], run["seed"]] for run in of])
        for name, of in sorted(groups.items())
    }


def _one(of: list[dict[str, Any]], starts: list[dict[str, Any]]) -> dict[str, Any]:
    n = sum(run["n"] for run in of)
    before, after = (sum(run["reward"] * run["n"] for run in some) / n for some in (starts, of))
    (low, high), ci_before = wilson(after, n), wilson(before, n)
    areas = [sum(run["curve"]) / len(run["curve"]) for run in of if run["curve"] and run["items"] is None]
    return {
        "before": round(before, 4),
        "after": round(after, 4),
        "ci": [round(low, 4), round(high, 4)],
        "ci_before": [round(x, 4) for x in ci_before],
        "curve": round(sum(areas) / len(areas), 4) if areas else None,
        "curve_seeds": [round(min(areas), 4), round(max(areas), 4)] if areas else None,
        "seeds": sorted(run["seed"] for run in of),
        "n": n,
        "failed": sum(run["failed"] for run in of),
        "learned": low > ci_before[1],
        "left_out": _sum(run["left_out"] for run in of),
    }


def _sum(parts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total


def table(recipes: dict[str, dict[str, Any]]) -> str:
    """The summary in Markdown: within a task, the best first."""
    lines = [
        "| task | recipe | before | after | 95 % of after | mean training reward (seeds) | seeds | learned |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, r in sorted(recipes.items(), key=lambda one: (one[0].split("/")[0], -one[1]["after"])):
        task, recipe = name.split("/")
        seeds, learned = ", ".join(map(str, r["seeds"])), "yes" if r["learned"] else "no"
        scores = f"{r['before']:.3f} | {r['after']:.3f} | {r['ci'][0]:.3f}–{r['ci'][1]:.3f}"
        curve = "–"
        if r["curve"] is not None:
            least, most = r["curve_seeds"]
            curve = f"{r['curve']:.3f}" + (f" ({least:.3f}–{most:.3f})" if len(r["seeds"]) > 1 else "")
        lines.append(f"| {task} | `{recipe}` | {scores} | {curve} | {seeds} | {learned} |")
    return "\n".join(lines)


def plot(runs: Sequence[dict[str, Any]]) -> str:
    """An SVG with a panel a task: the mean training reward of each step, over the seeds of a recipe. What
    learns from stored rollouts makes none, so it has no curve.
    """
    curves: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if len(run["curve"]) > 1 and run["items"] is None:
            curves[run["task"]][run["recipe"]].append(run["curve"])
    names = sorted({name for of in curves.values() for name in of})
    panels = [_panel(task, of, names, i) for i, (task, of) in enumerate(sorted(curves.items()))]
    wide = max(1, len(panels)) * (WIDTH + LEFT + 16)
    legend = [
        f'<g transform="translate({LEFT + 110 * (i % 7)},{TOP + HEIGHT + 46 + 18 * (i // 7)})">'
        f'<rect width="14" height="3" y="-4" fill="{_colour(names, name)}"/><text x="20">{name}</text></g>'
        for i, name in enumerate(names)
    ]
    tall = TOP + HEIGHT + 60 + 18 * (len(names) // 7 + 1)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" font-family="sans-serif" '
            'font-size="12">',
            f'<rect width="{wide}" height="{tall}" fill="white"/>',
            *panels,
            *legend,
            "</svg>",
            "",
        ]
    )


def _colour(names: list[str], name: str) -> str:
    return COLOURS[names.index(name) % len(COLOURS)]


def _panel(task: str, of: dict[str, list[list[float]]], names: list[str], column: int) -> str:
    """Axes and curves of a task."""
    steps = max(len(curve) for curves in of.values() for curve in curves)
    x0 = LEFT + column * (WIDTH + LEFT + 16)

    def at(step: int, value: float) -> str:
        return f"{x0 + WIDTH * step / max(1, steps - 1):.1f},{TOP + HEIGHT * (1 - value):.1f}"

    lines = [
        f'<text x="{x0}" y="{TOP - 12}" font-weight="bold">{task}: mean reward of a step\'s rollouts</text>'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = TOP + HEIGHT * (1 - tick)
        lines.append(
            f'<path d="M{x0} {y}h{WIDTH}" stroke="#ddd"/><text x="{x0 - 34}" y="{y + 4}">{tick:g}</text>'
        )
    lines.append(f'<text x="{x0}" y="{TOP + HEIGHT + 18}">step 1</text>')
    lines.append(f'<text x="{x0 + WIDTH}" y="{TOP + HEIGHT + 18}" text-anchor="end">{steps}</text>')
    for name, curves in sorted(of.items()):
        length = min(map(len, curves))
        points = " ".join(at(i, sum(c[i] for c in curves) / len(curves)) for i in range(length))
        lines.append(
            f'<polyline points="{points}" fill="none" stroke-width="1.6" stroke="{_colour(names, name)}"/>'
        )
    return "\n".join(lines)
