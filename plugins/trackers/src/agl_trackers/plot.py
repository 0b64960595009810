"""``curve.png`` shows the training reward per step and the evaluations with their intervals. It needs the
extra ``plot``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.types import Evaluation, StepReport
from agl_trackers.curve import RewardHistory, smooth

log = logging.getLogger(__name__)


class PlotTracker(RewardHistory):
    """Draws once, at the end. Without matplotlib it logs how to install it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.evaluations: list[tuple[int, Evaluation]] = []
        self.title = ""

    def start(self, run: Mapping[str, Any]) -> None:
        self.title = str(run.get("about", {}).get("agent", run["run_id"]))
        self.begin(run)

    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        """Begin the curve where the run began."""
        self.start(run)
        for report in reports:
            self.step(report)
        for evaluation in evaluations:
            self.evaluated(evaluation)

    def step(self, report: StepReport) -> None:
        self.add(report)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Note an evaluation of the run's own schedule. Its name gives the number of steps before it."""
        if "/" in evaluation.name:  # of a named set
            return
        kind, _, number = evaluation.name.partition("-")
        if kind == "step" or evaluation.name in ("before", "after"):
            last = 0 if kind == "before" else len(self.rewards)
            self.evaluations.append((int(number) if number.isdigit() else last, evaluation))

    def finish(self, summary: Mapping[str, Any]) -> None:
        if not self.rewards:
            return
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            log.warning("no curve.png: matplotlib is not installed; pip install matplotlib")
            return
        figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        steps = range(1, len(self.rewards) + 1)
        label = "training reward (sampled)"
        axes.plot(steps, self.rewards, color="#9ecae1", linewidth=1, label=f"{label}, one step")
        axes.plot(steps, smooth(self.rewards, 5), color="#2171b5", linewidth=2, label=f"{label}, mean of 5")
        for name, credits in self.policies.items():
            seen = steps[: len(credits)]
            axes.plot(seen, smooth(credits, 5), linewidth=1.5, linestyle="--", label=f"credit of {name}")
        if self.evaluations:
            xs = [x for x, _ in self.evaluations]
            ys = [e.reward for _, e in self.evaluations]
            around = [e.ci or (e.reward, e.reward) for _, e in self.evaluations]
            bars = [
                [y - low for y, (low, _) in zip(ys, around, strict=True)],
                [high - y for y, (_, high) in zip(ys, around, strict=True)],
            ]
            axes.errorbar(
                xs,
                ys,
                yerr=bars,
                fmt="o",
                color="#d94801",
                capsize=4,
                label="held-out, greedy, 95 % interval",
            )
        axes.set(
            xlabel="training step",
            ylabel="reward",
            title=self.title,
            **({} if self.policies else {"ylim": (0, 1.02)}),  # credit has any range
            xlim=(-0.5, len(self.rewards) + 0.5),
        )
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", frameon=False)
        figure.savefig(self.folder / "curve.png")
