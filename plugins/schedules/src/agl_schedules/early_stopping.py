"""``training.early_stopping``: training ends when the reward on held-out tasks, or a set, no longer rises.

The evaluations before the first step and at the schedule's steps count. They stay with the run, so that one
which resumes decides as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentlightning.types import Evaluation
from agl_schedules.settings import EarlyStopping


def reason_to_end(settings: EarlyStopping, step: int, evaluations: Mapping[str, Evaluation]) -> str | None:
    """Return why training ends after ``step`` finished steps, if it does. ``evaluations``: those that the run
    has made, by name; later ones than of ``step`` do not count.
    """
    rewards = {
        at: one.reward for name, one in evaluations.items() if (at := _steps(name, settings.on)) is not None
    }
    if step not in rewards:
        return None
    best, best_step, waited = float("-inf"), 0, 0
    for at in sorted(at for at in rewards if at <= step):
        if rewards[at] > best + settings.min_delta:
            best, best_step, waited = rewards[at], at, 0
        else:
            waited += 1
    if waited < settings.patience:
        return None
    which = "the held-out reward" if settings.on is None else f"the reward on {settings.on}"
    ago = "1 evaluation ago" if waited == 1 else f"{waited} evaluations ago"
    return f"{which} was best after step {best_step} ({best:.3f}), {ago}"


def _steps(name: str, on: str | None) -> int | None:
    """Return the finished steps before an evaluation that counts, by its name; ``None`` for others."""
    when, _, tasks = name.partition("/")
    if tasks != (on or ""):
        return None
    if when == "before":
        return 0
    kind, _, number = when.partition("-")
    return int(number) if kind == "step" and number.isdigit() else None
