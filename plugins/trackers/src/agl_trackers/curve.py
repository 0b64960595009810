"""The reward of a run, step by step, and its curve for the terminal, in Braille dots.

Invariant: a missing value (NaN) is a gap, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning.types import StepReport

_DOTS = (
    (0x01, 0x02, 0x04, 0x40),
    (0x08, 0x10, 0x20, 0x80),
)  # Unicode's bit of (column, row) in a cell of 2 × 4


class RewardHistory:
    """Mean reward of every step, and the mean credit of every named policy in it."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.policies: dict[str, list[float]] = {}
        self.latest: dict[str, StepReport] = {}
        """Policy → its latest report."""

    def begin(self, run: Mapping[str, Any]) -> None:
        """Note the names of the policies that the run trains."""
        self.policies = {name: [] for name in run.get("trained") or ()}

    def add(self, report: StepReport) -> bool:
        """Add a report; return whether every policy has reported the step. Policies share its rollouts."""
        self.latest[report.policy] = report
        credits = self.policies.get(report.policy)
        if credits is not None:
            credits.append(report.metrics.get("credit_mean", math.nan))
        if credits is None or len(credits) > len(self.rewards):
            self.rewards.append(report.metrics.get("reward_mean", math.nan))
        return all(len(credits) == len(self.rewards) for credits in self.policies.values())


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of the last ``window`` values at every place, of fewer at the start, without NaN."""
    windows = (values[max(0, i - window + 1) : i + 1] for i in range(len(values)))
    known = ([value for value in one if not math.isnan(value)] for one in windows)
    return [sum(one) / len(one) if one else math.nan for one in known]


def curve(values: Sequence[float], *, width: int = 60, height: int = 8) -> list[str]:
    """Draw ``values`` as ``height`` lines of text, with the axis at the left. Values beyond 0 and 1 are drawn
    at the border.
    """
    if not values:
        return []
    cells = [[0] * width for _ in range(height)]
    columns, rows = width * 2, height * 4
    before: int | None = None
    for x in range(columns):
        value = values[round(x * (len(values) - 1) / max(1, columns - 1))]
        if math.isnan(value):
            before = None
            continue
        y = round((1 - min(1.0, max(0.0, value))) * (rows - 1))
        last = y if before is None else before
        for step in range(min(y, last), max(y, last) + 1):
            cells[step // 4][x // 2] |= _DOTS[x % 2][step % 4]
        before = y
    lines = []
    for i, row in enumerate(cells):
        label = 1.0 - i / max(1, height - 1)
        lines.append(f"{label:5.2f} ┤" + "".join(chr(0x2800 + cell) for cell in row).rstrip("\u2800"))
    return lines


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Draw the last ``width`` values as bars of eight heights."""
    bars = "▁▂▃▄▅▆▇█"
    return "".join(" " if math.isnan(v) else bars[int(min(7, max(0.0, 8 * v)))] for v in values[-width:])
