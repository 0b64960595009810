"""``curve.png``: training reward per step and the evaluations with their intervals. Needs the extra
``plot``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.trackers.curve import smooth
from agentlightning.types import Evaluation, StepReport

log = logging.getLogger(__name__)


class PlotTracker:
    """Draws once, at the end. Without matplotlib it says how to get it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[int] = []
        self.rewards: list[float] = []
        self.policies: dict[str, tuple[list[int], list[float]]] = {}
        """Of a run with named policies: the steps of each, and its mean credit in them."""
        self.evaluations: list[tuple[int, Evaluation]] = []
        self.title = ""

    def start(self, run: Mapping[str, Any]) -> None:
        self.title = str(run.get("about", {}).get("agent", run["run_id"]))
        self.policies = {name: ([], []) for name in run.get("trained") or ()}

    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        """The curve begins where the run began."""
        self.start(run)
        for report in reports:
            self.step(report)
        for evaluation in evaluations:
            self._mark(evaluation, _step_of(evaluation, len(self.steps)))

    def step(self, report: StepReport) -> None:
        if report.policy in self.policies:
            steps, credits = self.policies[report.policy]
            steps.append(report.step + 1)
            credits.append(report.metrics.get("credit_mean", float("nan")))
        if self.steps and self.steps[-1] == report.step + 1:  # another policy's, of the same rollouts
            return
        self.steps.append(report.step + 1)
        self.rewards.append(report.metrics.get("reward_mean", float("nan")))

    def evaluated(self, evaluation: Evaluation) -> None:
        self._mark(evaluation, self.steps[-1] if self.steps else 0)

    def _mark(self, evaluation: Evaluation, step: int) -> None:
        if evaluation.name in ("before", "after") or evaluation.name.startswith("step-"):
            self.evaluations.append((step, evaluation))

    def finish(self, summary: Mapping[str, Any]) -> None:
        if not self.steps:
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
        axes.plot(
            self.steps,
            self.rewards,
            color="#9ecae1",
            linewidth=1,
            label="training reward (sampled), one step",
        )
        axes.plot(
            self.steps,
            smooth(self.rewards, 5),
            color="#2171b5",
            linewidth=2,
            label="training reward (sampled), mean of 5",
        )
        for name, (steps, credits) in self.policies.items():
            axes.plot(steps, smooth(credits, 5), linewidth=1.5, linestyle="--", label=f"credit of {name}")
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
            xlim=(-0.5, self.steps[-1] + 0.5),
        )
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", frameon=False)
        figure.savefig(self.folder / "curve.png")


def _step_of(evaluation: Evaluation, last: int) -> int:
    """After how many steps an evaluation of the run's earlier life was made: its name says so."""
    if evaluation.name == "before":
        return 0
    number = evaluation.name.removeprefix("step-")
    return int(number) if number.isdigit() else last
