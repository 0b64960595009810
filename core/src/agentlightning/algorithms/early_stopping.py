"""Ends training when the held-out reward no longer rises: ``training.early_stopping``.

The evaluations before the first step and at the schedule's steps count, so that a run which resumes decides
as one that was never interrupted.
"""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.types import Evaluation, StepReport
from agentlightning.types.sections import EarlyStopping


class EarlyStop:
    """Answers the hook ``agl_end_training`` of one run."""

    def __init__(self, settings: EarlyStopping) -> None:
        self.settings = settings
        self.rewards: dict[int, float] = {}
        """Finished steps → reward of the evaluation there."""

    @hookimpl
    def agl_run_resumed(self, reports: list[StepReport], evaluations: list[Evaluation]) -> None:
        finished = len({report.step for report in reports})
        for evaluation in evaluations:
            step = _step(evaluation.name)
            if step is not None and step <= finished:
                self.rewards[step] = evaluation.reward

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        if (step := _step(evaluation.name)) is not None:
            self.rewards[step] = evaluation.reward

    @hookimpl
    def agl_end_training(self, step: int, evaluation: Evaluation) -> str | None:
        self.rewards[step] = evaluation.reward
        best, best_step, waited = float("-inf"), 0, 0
        for at, reward in sorted(self.rewards.items()):
            if reward > best + self.settings.min_delta:
                best, best_step, waited = reward, at, 0
            else:
                waited += 1
        if waited < self.settings.patience:
            return None
        return f"the held-out reward was best after step {best_step} ({best:.3f}), {waited} evaluations ago"


def _step(name: str) -> int | None:
    """Return the finished steps before an evaluation of the schedule, by its name."""
    if name == "before":
        return 0
    kind, _, number = name.partition("-")
    return int(number) if kind == "step" and number.isdigit() else None
