"""Draw ``bench/results/router_seeds.json`` as ``bench/results/router_seeds.svg``: who chooses how well.

    python bench/router_plot.py

A group of bars for all questions and for each kind of distractors, and in it a bar for each chooser: the mean
over the seeds of the main row. A thin line is the 95 % interval of the first seed's questions; dots are the
single seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
CHOOSERS = (
    ("chance", "chance", "#d0d7de"),
    ("before", "SmolLM2-135M, untrained", "#8b949e"),
    ("baseline_same_words", "count of shared words, sees the same names", "#bf8700"),
    ("after", "SmolLM2-135M, trained", "#1f6feb"),
    ("baseline_schema", "count of shared words, reads all schemas", "#eac54f"),
)
LEFT, TOP, HEIGHT, BAR, GAP, GREY = 46, 46, 220, 22, 34, "#57606a"


def scores(run: dict[str, Any], who: str) -> list[dict[str, Any]]:
    """Return the scores of a chooser in one run: of all questions, then by kind."""
    return [run["overall"][who], *(kind[who] for kind in run["by_distractor"].values())]


def text(x: float, y: float, content: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{GREY}" {more}>{content}</text>'


def height(value: float) -> float:
    """Return the y of a reward."""
    return TOP + HEIGHT * (1 - value)


def bar(x: float, seeds: list[dict[str, Any]], colour: str) -> str:
    """Return a bar with its interval, its seeds and its figure."""
    mean, (low, high) = fmean(one["reward"] for one in seeds), seeds[0]["ci"]
    middle, y = x + BAR / 2 - 1, height(mean)
    rewards = {one["reward"] for one in seeds}
    dots = "".join(
        f'<circle cx="{middle:.1f}" cy="{height(reward):.1f}" r="2" fill="#24292f"/>'
        for reward in (sorted(rewards) if len(rewards) > 1 else ())
    )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BAR - 2}" height="{TOP + HEIGHT - y:.1f}" fill="{colour}"/>'
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{height(low):.1f}" y2="{height(high):.1f}" '
        f'stroke="#24292f"/>{dots}'
        + text(middle, min(height(high), y) - 5, f"{mean:.2f}", 'text-anchor="middle" font-size="10"')
    )


def drawing(runs: list[dict[str, Any]]) -> str:
    """Return the picture as SVG."""
    groups = [("all questions", runs[0]["eval_tasks"])]
    groups += [(kind, of["n"]) for kind, of in runs[0]["by_distractor"].items()]
    step = BAR * len(CHOOSERS) + GAP
    parts = [text(LEFT, 20, "share of questions sent to the right database", 'font-weight="600"')]
    width = LEFT + step * len(groups) + 10
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = height(value)
        parts.append(f'<line x1="{LEFT}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#eaeef2"/>')
        parts.append(text(LEFT - 6, y + 4, f"{value:g}", 'text-anchor="end"'))
    for place, (name, n) in enumerate(groups):
        at = LEFT + GAP / 2 + place * step
        for number, (who, _, colour) in enumerate(CHOOSERS):
            parts.append(bar(at + number * BAR, [scores(run, who)[place] for run in runs], colour))
        label = f"{name} (n = {n})"
        parts.append(text(at + BAR * len(CHOOSERS) / 2, TOP + HEIGHT + 18, label, 'text-anchor="middle"'))
    for number, (_, name, colour) in enumerate(CHOOSERS):
        x, y = LEFT + (number % 2) * 290, TOP + HEIGHT + 36 + 20 * (number // 2)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(text(x + 18, y + 10, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 104}" '
        f'font-family="sans-serif" font-size="12"><rect width="{width}" height="{TOP + HEIGHT + 104}" '
        f'fill="white"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    found = json.loads((RESULTS / "router_seeds.json").read_text())["result"]["runs"]
    runs = [run for run in found if run["row"] == "names"]
    (RESULTS / "router_seeds.svg").write_text(drawing(runs))


if __name__ == "__main__":
    main()
