"""Curves: ticks are round and enclose the values, intervals are drawn, odd values do not break a chart."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings, strategies as st
from marks import examples

from agl_dashboard.drawing.chart import HEIGHT, WIDTH, Point, chart, label


def test_a_curve_with_an_interval() -> None:
    made = chart("Reward", [("training", [Point(1, 0.2, 0.1, 0.3), Point(2, 0.4, 0.3, 0.5)])])
    assert made is not None and not made.curves[0].band
    assert made.curves[0].bars.count("M") == 2  # nothing was measured between the two
    many = chart("Reward", [("training", [Point(n, 0.2, 0.1, 0.3) for n in range(20)])])
    assert many is not None and many.curves[0].band.endswith("Z") and not many.curves[0].bars
    assert made.summary == "training: 0.2 at 1, 0.4 at 2"
    assert [tick.label for tick in made.x_ticks] == ["1", "2"]
    assert json.loads(made.values)[0]["points"][1][:2] == [2, 0.4]


def test_nothing_to_draw() -> None:
    assert chart("x", []) is None and chart("x", [("a", [Point(1, math.nan)])]) is None


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.25, "0.25"), (1e-5, "1e-5"), (1500, "1,500"), (-3.2e7, "-3.2e7")]
)
def test_labels(value: float, said: str) -> None:
    assert label(value) == said


@settings(max_examples=examples(60))
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_every_point_lies_in_the_picture(values: list[float]) -> None:
    made = chart("x", [("y", [Point(n, value) for n, value in enumerate(values)])])
    assert made is not None
    for _, _, px, py, _, _ in json.loads(made.values)[0]["points"]:
        assert 0 <= px <= WIDTH and 0 <= py <= HEIGHT
