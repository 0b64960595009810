"""When it is enough: what a run does because of its evaluations.

``training.early_stopping`` ends training when the reward on the held-out tasks, or on a named set, no longer
rises. ``training.keep_best`` keeps the policy whose reward is best. The evaluations before the first step and
at the schedule's steps count, so that a run which resumes decides as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.types import Evaluation
from agl_schedules.best_policy import BestPolicy
from agl_schedules.settings import EarlyStopping, ScheduledTraining


class Enough:
    """Looks at the evaluations of one run (:class:`agentlightning.algorithms.schedule.Watch`)."""

    def __init__(self, context: Context, training: ScheduledTraining) -> None:
        self._context, self._by = context, training.keep_best
        self._best = BestPolicy(context.folder) if training.keep_best else None
        early = training.early_stopping
        self._early = EarlyStop(early) if early is not None else None
        if self._early is not None:
            self._early.resume(context.evaluations.made, context.first_step)

    async def evaluated(self, step: int, evaluations: Mapping[str, Evaluation]) -> str | None:
        """Keep the present policy if it is the best; return why training ends here, if it does."""
        await self._keep_if_best(step, evaluations.get(self._by if isinstance(self._by, str) else ""))
        return None if self._early is None else self._early.evaluated(step, evaluations)

    def summary(self) -> dict[str, Any]:
        """Return the record of the best policy, if it is kept."""
        return {"best": self._best.record} if self._best is not None and self._best.record else {}

    async def _keep_if_best(self, step: int, evaluation: Evaluation | None) -> None:
        """Keep the present policy, of ``step`` finished steps, if its evaluation is the best so far."""
        if self._best is None or evaluation is None or self._context.driver is None:
            return
        if await self._best.consider(step, evaluation, self._context.driver):
            what = f"{evaluation.reward:.3f} ({evaluation.name})"
            self._context.say(f"best held-out reward so far: {what}, after step {step}; kept")


class EarlyStop:
    """Decides whether training ends, by the rewards so far."""

    def __init__(self, settings: EarlyStopping) -> None:
        self.settings = settings
        self.rewards: dict[int, float] = {}
        """Finished steps → reward of the evaluation there."""

    def resume(self, known: Mapping[str, Mapping[str, Any]], first_step: int) -> None:
        """Take the evaluations up to ``first_step`` from before a resume; ``known``: as in a context."""
        for entry in known.values():
            step = self._step(entry["evaluation"]["name"])
            if step is not None and step <= first_step:
                self.rewards[step] = entry["evaluation"]["reward"]

    def evaluated(self, step: int, evaluations: Mapping[str, Evaluation]) -> str | None:
        """Return why training ends after ``step`` finished steps, if it does."""
        if (evaluation := evaluations.get(self.settings.on or "")) is None:
            return None
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
