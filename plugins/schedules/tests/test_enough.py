"""Which evaluations count for early stopping, also in a run that resumes."""

from __future__ import annotations

from typing import Any

from agentlightning.types import Evaluation
from agl_schedules.enough import EarlyStop
from agl_schedules.settings import EarlyStopping


def seen(name: str, reward: float) -> Evaluation:
    return Evaluation(name=name, n=1, reward=reward)


def known(*evaluations: Evaluation) -> dict[str, dict[str, Any]]:
    """As a run's record has them."""
    return {f"eval/{one.name}/1": {"version": 0, "evaluation": one.model_dump()} for one in evaluations}


def test_a_resumed_run_counts_the_evaluations_of_finished_steps_alone() -> None:
    early = EarlyStop(EarlyStopping(patience=2))
    before = [seen("before", 0.2), seen("step-1", 0.5), seen("step-1/hard", 0.9), seen("step-3", 0.9)]
    early.resume(known(*before), 2)
    assert early.rewards == {0: 0.2, 1: 0.5}
    assert early.evaluated(2, {"": seen("step-2", 0.4)}) is None
    assert early.evaluated(3, {"": seen("step-3", 0.4)}) == (
        "the held-out reward was best after step 1 (0.500), 2 evaluations ago"
    )


def test_with_a_named_set_its_evaluations_alone_count() -> None:
    early = EarlyStop(EarlyStopping(patience=1, on="hard"))
    early.resume(known(seen("before", 0.9), seen("before/hard", 0.1), seen("before/easy", 1)), 0)
    assert early.evaluated(1, {"": seen("step-1", 0.0), "hard": seen("step-1/hard", 0.3)}) is None
    assert early.evaluated(2, {"": seen("step-2", 1.0), "hard": seen("step-2/hard", 0.2)}) == (
        "the reward on hard was best after step 1 (0.300), 1 evaluation ago"
    )


def test_a_named_set_counts_without_held_out_tasks_beside_it() -> None:
    early = EarlyStop(EarlyStopping(patience=1, on="hard"))
    assert early.evaluated(0, {"hard": seen("before/hard", 0.3)}) is None
    assert early.evaluated(1, {"hard": seen("step-1/hard", 0.3)}) is not None
    assert early.evaluated(2, {}) is None
