"""Draw ``bench/results/records.json`` as ``bench/results/records.svg``: every turn costs the same.

    python bench/records_plot.py

Three panels over the number of turns: megabytes on file a rollout, CPU of the gateway a call, and bytes on
file a new token. ``records_before.json``, the same bench of an earlier version, is the dashed line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
WIDTH, HEIGHT, LEFT, TOP = 250, 190, 46, 40
NOW, BEFORE, GREY = "#1f6feb", "#8b949e", "#57606a"
TOKENS_A_TURN = 1614
PANELS = (
    ("MB on file, a rollout", lambda size: size["mb"]),
    ("CPU ms a call at the gateway", lambda size: size["cpu_ms"]),
    ("bytes on file, a new token", lambda size: 1e6 * size["mb"] / (size["turns"] * TOKENS_A_TURN)),
)


def sizes(name: str) -> list[dict[str, Any]]:
    """The sizes of a result; none, where there is no such file."""
    path = RESULTS / name
    found: list[dict[str, Any]] = (
        json.loads(path.read_text(encoding="utf-8"))["result"]["sizes"] if path.exists() else []
    )
    return found


def line(points: Sequence[tuple[float, float]], most: float, colour: str, dash: str) -> str:
    """A line with dots; x is 0 to 80 turns, y is 0 to ``most``."""
    at = [(LEFT + x / 80 * WIDTH, TOP + HEIGHT * (1 - y / most)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" {dash}/>{dots}'


def label(x: float, y: float, text: str, more: str = f'fill="{GREY}"') -> str:
    return f'<text x="{x}" y="{y}" {more}>{text}</text>'


def panel(title: str, series: Sequence[tuple[Sequence[tuple[float, float]], str, str]]) -> str:
    """Axes, a title, and a line for each series."""
    most = 1.1 * max(y for points, _, _ in series for _, y in points)
    parts = [label(LEFT, TOP - 14, title, 'font-weight="600"')]
    for share in (0, 0.5, 1):
        y = TOP + HEIGHT * (1 - share)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(label(LEFT - 6, y + 4, f"{most * share:.3g}", f'text-anchor="end" fill="{GREY}"'))
    for turns in (10, 20, 40, 80):
        at = LEFT + turns / 80 * WIDTH
        parts.append(label(at, TOP + HEIGHT + 16, str(turns), f'text-anchor="middle" fill="{GREY}"'))
    return "".join([*parts, *(line(points, most, colour, dash) for points, colour, dash in series)])


def main() -> None:
    now, before = sizes("records.json"), sizes("records_before.json")
    drawn = []
    for place, (title, value) in enumerate(PANELS):
        series = [([(size["turns"], value(size)) for size in now], NOW, "")]
        if before:
            dashed = [(size["turns"], value(size)) for size in before]
            series.insert(0, (dashed, BEFORE, 'stroke-dasharray="5 4"'))
        drawn.append(f'<g transform="translate({place * (WIDTH + LEFT + 20)} 0)">{panel(title, series)}</g>')
    width, height = 3 * (WIDTH + LEFT + 20), TOP + HEIGHT + 54
    drawn.append(label(LEFT, height - 12, "calls as deltas", f'fill="{NOW}"'))
    if before:
        drawn.append(label(LEFT + 120, height - 12, "whole calls, before", f'fill="{BEFORE}"'))
    drawn.append(label(width - 20, height - 12, "turns of an agent", f'text-anchor="end" fill="{GREY}"'))
    (RESULTS / "records.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>{"".join(drawn)}</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
