"""The table and the picture of finished runs.

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
WIDTH, LEFT, RIGHT = 520, 116, 60
HEAD, ROW, FOOT = 66, 24, 14
BLUE, GREY = "#3f51b5", "#a3acb8"
"""Of a recipe that has learned, and of the others and the start policy."""


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


def plot(recipes: dict[str, dict[str, Any]]) -> str:
    """An SVG with a panel a task: the held-out reward of each recipe after training with its 95 % interval,
    the best first, beside that of the start policy (the grey line).
    """
    panels, top = list[str](), 0
    for task in sorted({name.split("/")[0] for name in recipes}):
        of = {name.split("/")[1]: one for name, one in recipes.items() if name.startswith(f"{task}/")}
        panels += _panel(task, of, top)
        top += HEAD + ROW * len(of) + FOOT
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" font-family="system-ui,sans-serif" font-size="15"'
    about = "Held-out reward of each recipe after training, with its 95 % interval, beside the start policy"
    ground = f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{about}</title>'
    return "\n".join([head, ground, *panels, "</svg>", ""])


def _panel(task: str, of: dict[str, dict[str, Any]], top: int) -> list[str]:
    """The rows of a task."""
    wide = WIDTH - LEFT - RIGHT

    def at(value: float) -> str:
        return f"{LEFT + wide * value:.1f}"

    start, end = at(next(iter(of.values()))["before"]), top + HEAD + ROW * len(of)
    lines = [
        f'<text x="12" y="{top + 28}" font-weight="bold">{task}: held-out reward after training</text>',
        f'<path d="M{start} {top + HEAD - 8}V{end}" stroke="{GREY}" stroke-width="2"/>',
        f'<text x="{start}" y="{top + HEAD - 13}" text-anchor="middle" font-size="13" fill="#566173">before: '
        f"{next(iter(of.values()))['before']:.2f}</text>",
    ]
    for number, (name, one) in enumerate(sorted(of.items(), key=lambda item: -item[1]["after"])):
        y, colour = top + HEAD + ROW * number + ROW // 2, BLUE if one["learned"] else GREY
        (low, high), after = one["ci"], one["after"]
        told = f"{after:.2f}" + ("" if one["learned"] else ", not learned")
        lines += [
            f'<text x="12" y="{y + 5}">{name}</text>',
            f'<path d="M{at(low)} {y}H{at(high)}" stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{at(after)}" cy="{y}" r="6" fill="{colour}"/>',
            f'<text x="{LEFT + wide * high + 8:.1f}" y="{y + 5}" font-size="13">{told}</text>',
        ]
    return lines
