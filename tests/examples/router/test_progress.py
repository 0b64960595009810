"""The progress of evaluations is told, and that of nothing else."""

from __future__ import annotations

import io

from agentlightning.types import Rollout
from router.progress import EVERY, EvaluationProgress


def test_evaluations_are_counted_by_name() -> None:
    out = io.StringIO()
    progress = EvaluationProgress(2 * EVERY, out)
    for _ in range(EVERY):
        progress.agl_rollout_finished(Rollout(rollout_id="a", input=1, metadata={"evaluation": "before"}))
        progress.agl_rollout_finished(Rollout(rollout_id="b", input=1))
        progress.agl_rollout_finished(Rollout(rollout_id="c", input=1, metadata={"evaluation": "after"}))
    assert progress.done == {"before": EVERY, "after": EVERY}
    assert out.getvalue().splitlines() == [
        f"evaluating before     {EVERY} of {2 * EVERY} tasks",
        f"evaluating after      {EVERY} of {2 * EVERY} tasks",
    ]
