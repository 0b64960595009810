"""Which evaluations count for early stopping, also in a run that resumes."""

from __future__ import annotations

from agentlightning.algorithms.evaluation.early_stopping import EarlyStop
from agentlightning.types import Evaluation, StepReport
from agentlightning.types.sections import EarlyStopping


def seen(name: str, reward: float) -> Evaluation:
    return Evaluation(name=name, n=1, reward=reward)


def reports(steps: int) -> list[StepReport]:
    return [StepReport(run_id="r", step=i, policy="p", policy_version=i + 1) for i in range(steps)]


def test_a_resumed_run_counts_the_evaluations_of_finished_steps_alone() -> None:
    early = EarlyStop(EarlyStopping(patience=2))
    before = [seen("before", 0.2), seen("step-1", 0.5), seen("step-1/hard", 0.9), seen("step-3", 0.9)]
    early.agl_run_resumed(reports(2), before)
    assert early.rewards == {0: 0.2, 1: 0.5}
    assert early.agl_end_training(2, seen("step-2", 0.4)) is None
    assert early.agl_end_training(3, seen("step-3", 0.4)) == (
        "the held-out reward was best after step 1 (0.500), 2 evaluations ago"
    )


def test_with_a_named_set_its_evaluations_alone_count() -> None:
    early = EarlyStop(EarlyStopping(patience=1, on="hard"))
    early.agl_run_resumed(reports(1), [seen("before", 0.9), seen("before/hard", 0.1), seen("before/easy", 1)])
    early.agl_evaluated(seen("step-1/hard", 0.3))
    assert early.agl_end_training(1, seen("step-1", 0.0)) is None
    early.agl_evaluated(seen("step-2/hard", 0.2))
    assert early.agl_end_training(2, seen("step-2", 1.0)) == (
        "the reward on hard was best after step 1 (0.300), 1 evaluation ago"
    )
