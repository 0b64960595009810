"""Ends training when the reward on the held-out tasks, or on a named set, no longer rises:
``training.early_stopping``.

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
            step = self._step(evaluation.name)
            if step is not None and step <= finished:
                self.rewards[step] = evaluation.reward

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        if (step := self._step(evaluation.name)) is not None:
            self.rewards[step] = evaluation.reward

    @hookimpl
    def agl_end_training(self, step: int, evaluation: Evaluation) -> str | None:
        if self.settings.on is None:
            self.rewards[step] = evaluation.reward
        best, best_step, waited = float("-inf"), 0, 0
        for at, reward in sorted(self.rewards.items()):
            if reward > best + self.settings.min_delta:
                best, best_step, waited = reward, at, 0
            else:
                waited += 1
        if waited < self.settings.patience:
            return None
        which = "the held-out reward" if self.settings.on is None else f"the reward on {self.settings.on}"
        ago = "1 evaluation ago" if waited == 1 else f"{waited} evaluations ago"
        return f"{which} was best after step {best_step} ({best:.3f}), {ago}"

    def _step(self, name: str) -> int | None:
        """Return the finished steps before an evaluation that counts, by its name; ``None`` for others."""
        when, _, tasks = name.partition("/")
        if tasks != (self.settings.on or ""):
            return None
        if when == "before":
            return 0
        kind, _, number = when.partition("-")
        return int(number) if kind == "step" and number.isdigit() else None
