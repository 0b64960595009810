"""The terminal's curve."""

from __future__ import annotations

import math

from agl_trackers.curve import curve, smooth, sparkline


def test_smooth_is_a_trailing_mean() -> None:
    assert smooth([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]


def test_curve_rises_from_the_lower_left_to_the_upper_right() -> None:
    lines = curve([i / 20 for i in range(21)], width=20, height=4)
    assert len(lines) == 4 and lines[0].startswith(" 1.00 ┤") and lines[-1].startswith(" 0.00 ┤")
    body = [line.split("┤")[1] for line in lines]
    assert body[0].strip("\u2800 ") and body[-1][0] != "\u2800" and len(body[-1]) < len(body[0])


def test_curve_clips_and_survives_short_input() -> None:
    assert curve([]) == []
    assert len(curve([5.0], width=4, height=2)) == 2


def test_what_is_missing_is_a_gap_and_never_zero() -> None:
    nan = math.nan
    assert smooth([nan, 2.0, nan, 4.0], 2)[1:] == [2.0, 2.0, 4.0] and math.isnan(smooth([nan], 2)[0])
    assert sparkline([1.0, nan, 0.0, math.inf, -math.inf]) == "█ ▁█▁"
    assert set("".join(line[7:] for line in curve([nan, nan], width=4, height=2))) <= {"\u2800"}


def test_sparkline_uses_all_heights() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
