"""Curves over steps: points, intervals, ticks and paths in the units of an SVG's view box."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

WIDTH, HEIGHT = 560.0, 200.0
WIDE: Final = (1180.0, 250.0)
LEFT, RIGHT, TOP, BOTTOM = 50.0, 12.0, 12.0, 26.0
MOST: Final = 600
"""Points of a curve that are drawn; of more, an evenly spread part and the last one."""


class Point(NamedTuple):
    """One value of a curve, with its interval where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Tick(NamedTuple):
    """A labelled place of an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Curve:
    """A named curve, ready to be drawn."""

    name: str
    number: int
    """1, 2, …: its colour."""
    line: str
    """SVG path."""
    band: str
    """SVG path of the interval, empty without one."""
    bars: str
    """SVG path of the intervals of few points, between which nothing was measured; the band is empty then."""
    dots: list[tuple[float, float]]
    """Places of the points, if there are few."""


@dataclass(frozen=True)
class Chart:
    """Curves with their axes."""

    title: str
    curves: list[Curve]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    summary: str
    """What a reader who does not see the picture is told."""
    values: str
    """JSON for the cross-hair: ``{"x": […], "curves": [{"name", "points": [[x, y, px, py], …]}]}``."""
    about: str = ""
    width: float = WIDTH
    height: float = HEIGHT
    plot: tuple[float, float, float, float] = field(
        default=(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    )


def chart(
    title: str, series: Sequence[tuple[str, Sequence[Point]]], about: str = "", *, wide: bool = False
) -> Chart | None:
    """Return the chart of named series of points; ``None`` if no point is finite."""
    width, height = WIDE if wide else (WIDTH, HEIGHT)
    kept = [(name, _thin([p for p in points if math.isfinite(p.y)])) for name, points in series]
    kept = [(name, points) for name, points in kept if points]
    if not kept:
        return None
    every = [point for _, points in kept for point in points]
    low_x, high_x = _bounds([p.x for p in every])
    ys = [v for p in every for v in (p.y, p.low, p.high) if v is not None and math.isfinite(v)]
    y_values = _ticks(*_bounds(ys), 4)
    low_y, high_y = min(y_values[0], min(ys)), max(y_values[-1], max(ys))
    x_values = [v for v in _ticks(low_x, high_x, 6) if low_x <= v <= high_x and v == int(v)] or [low_x]

    def px(x: float) -> float:
        return round(LEFT + (x - low_x) / ((high_x - low_x) or 1.0) * (width - LEFT - RIGHT), 1)

    def py(y: float) -> float:
        return round(height - BOTTOM - (y - low_y) / ((high_y - low_y) or 1.0) * (height - TOP - BOTTOM), 1)

    curves = []
    for number, (name, points) in enumerate(kept, 1):
        places = [(px(p.x), py(p.y)) for p in points]
        bounded = [
            (px(p.x), py(p.low), py(p.high)) for p in points if p.low is not None and p.high is not None
        ]
        dots = places if len(places) <= 12 else []
        band, bars = ("", _bars(bounded)) if dots else (_band(bounded), "")
        curves.append(Curve(name, (number - 1) % 6 + 1, _path(places), band, bars, dots))
    said = [
        {"name": name, "points": [[p.x, _plain(p.y), px(p.x), py(p.y), p.low, p.high] for p in points]}
        for name, points in kept
    ]
    return Chart(
        title,
        curves,
        [Tick(px(x), label(x)) for x in x_values],
        [Tick(py(y), label(y)) for y in y_values if low_y <= y <= high_y],
        "; ".join(_said(name, points) for name, points in kept),
        json.dumps(said, separators=(",", ":")),
        about,
        width,
        height,
        (LEFT, TOP, width - LEFT - RIGHT, height - TOP - BOTTOM),
    )


def leading(title: str, series: Sequence[tuple[str, Sequence[Point]]], about: str) -> list[Chart | None]:
    """Return the chart twice: as wide as the page, and for a phone, where the wide one would be too small to
    read. The styles of the page show one of them.
    """
    return [chart(title, series, about, wide=True), chart(title, series, about)]


def label(value: float) -> str:
    """Return a number as a person writes it on an axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.4g}" if abs(value) < 1e3 else f"{value:,.0f}"


def _said(name: str, points: Sequence[Point]) -> str:
    first, last = points[0], points[-1]
    return f"{name}: {label(first.y)} at {label(first.x)}, {label(last.y)} at {label(last.x)}"


def _plain(value: float) -> float:
    return float(f"{value:.6g}")


def _thin(points: list[Point]) -> list[Point]:
    if len(points) <= MOST:
        return points
    step = len(points) / MOST
    return [*(points[int(i * step)] for i in range(MOST - 1)), points[-1]]


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        room = abs(low) * 0.1 or 0.5
        return low - room, high + room
    return low, high


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return round numbers that enclose ``low`` and ``high``: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places)


def _band(bounded: Sequence[tuple[float, float, float]]) -> str:
    if len(bounded) < 2:
        return ""
    there = [(x, high) for x, _, high in bounded]
    back = [(x, low) for x, low, _ in reversed(bounded)]
    return _path([*there, *back]) + "Z"


def _bars(places: Sequence[tuple[float, float, float]]) -> str:
    return "".join(f"M{x:g} {low:g}V{high:g}" for x, low, high in places)
