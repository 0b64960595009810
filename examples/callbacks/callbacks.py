"""Callbacks: a file of hooks that a run calls; ``callbacks: [callbacks:Budget]`` names one.

A class is made anew for each run. Any hook of docs/contributing/hooks.md may stand here, with any subset of
its arguments.
"""

from __future__ import annotations

from agentlightning import hookimpl
from agentlightning.types import Evaluation, StepReport


class Budget:
    """Ends training after a number of generated and trained tokens, at the next evaluation."""

    TOKENS = 2_000

    def __init__(self) -> None:
        self.used = 0.0

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self.used += report.metrics.get("tokens", 0.0)

    @hookimpl
    def agl_end_training(self, step: int) -> str | None:
        if self.used < self.TOKENS:
            return None
        return f"{self.used:.0f} tokens after {step} steps are more than the budget of {self.TOKENS}"


class BestSoFar:
    """Prints each evaluation that is better than all before it."""

    def __init__(self) -> None:
        self.best: Evaluation | None = None

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        if self.best is None or evaluation.reward > self.best.reward:
            self.best = evaluation
            print(f"{evaluation.name}: {evaluation.reward:.3f}, the best so far")
