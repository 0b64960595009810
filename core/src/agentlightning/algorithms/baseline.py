"""Baseline: run the agent as it is, once on each task, for the score to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.algorithms.custom import Algorithm
from agentlightning.types import Evaluation, UsageError


class Baseline(Algorithm):
    """Runs every task once, those to train on in mode ``train``, those held out in mode ``val``, and returns
    the mean rewards. ``tasks``: at most so many of each dataset (``None``: all).
    """

    def __init__(self, *, tasks: int | None = None) -> None:
        if tasks is not None and tasks < 1:
            raise UsageError(f"Baseline(tasks={tasks}): at least one task must run")
        self.tasks = tasks

    async def run(self, train_dataset: Sequence[Any] = (), val_dataset: Sequence[Any] = ()) -> dict[str, Any]:
        """Evaluate both datasets; one of them may be empty."""
        if not len(train_dataset) and not len(val_dataset):
            raise UsageError("Baseline: there are no tasks; give train_dataset or val_dataset")
        context = self._get("context")
        found: dict[str, Any] = {}
        for name, tasks in (("train", train_dataset), ("val", val_dataset)):
            chosen = [tasks[i] for i in range(min(len(tasks), self.tasks or len(tasks)))]
            if chosen:
                evaluation = await context.evaluate(chosen, name=name, mode=name)
                context.say(_line(evaluation))
                found[name] = evaluation.model_dump()
        return {"baseline": found}


FAST = Baseline


def _line(e: Evaluation) -> str:
    interval = f" [{e.ci[0]:.3f}, {e.ci[1]:.3f}]" if e.ci else ""
    rewards = " ".join(f"{reward:g}" for reward in e.rewards[:20])
    more = f" … and {e.n - 20} more" if e.n > 20 else ""
    mean = f"mean reward {e.reward:.3f}{interval} of {e.n}, {e.failed} failed"
    return f"baseline, {e.name}: {mean}: {rewards}{more}"
