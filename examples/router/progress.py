"""Progress of evaluations on stderr: one of a real model takes a minute, and its result comes at the end."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TextIO

from agentlightning.hookspecs import hookimpl
from agentlightning.types import Rollout

EVERY = 50
"""Rollouts between two lines."""


class EvaluationProgress:
    """Counts the finished rollouts of each evaluation of ``tasks`` tasks; a plugin's listener."""

    def __init__(self, tasks: int, out: TextIO | None = None) -> None:
        self.tasks = tasks
        self.done: Counter[str] = Counter()
        self._out = out or sys.stderr

    @hookimpl
    def agl_rollout_finished(self, rollout: Rollout) -> None:
        if (name := rollout.metadata.get("evaluation")) is None:
            return
        self.done[name] += 1
        if self.done[name] % EVERY == 0:
            print(f"evaluating {name:10} {self.done[name]} of {self.tasks} tasks", file=self._out, flush=True)
