"""Which evaluations count for early stopping, also in a run that resumes."""

from __future__ import annotations

from agentlightning.types import Evaluation
from agl_schedules.early_stopping import reason_to_end
from agl_schedules.settings import EarlyStopping


def made(**rewards: float) -> dict[str, Evaluation]:
    """Evaluations by name, in which ``_`` stands for ``-`` and ``__`` for ``/``."""
    names = {name: name.replace("__", "/").replace("_", "-") for name in rewards}
    return {names[name]: Evaluation(name=names[name], n=1, reward=of) for name, of in rewards.items()}


def test_a_resumed_run_counts_the_evaluations_of_finished_steps_alone() -> None:
    early = EarlyStopping(patience=2)
    before = made(before=0.2, step_1=0.5, step_1__hard=0.9, step_3=0.9)
    assert reason_to_end(early, 2, before | made(step_2=0.4)) is None
    assert reason_to_end(early, 3, before | made(step_2=0.4, step_3=0.4)) == (
        "the held-out reward was best after step 1 (0.500), 2 evaluations ago"
    )


def test_with_a_named_set_its_evaluations_alone_count() -> None:
    early = EarlyStopping(patience=1, on="hard")
    one = made(before=0.9, before__hard=0.1, before__easy=1, step_1=0.0, step_1__hard=0.3)
    assert reason_to_end(early, 1, one) is None
    assert reason_to_end(early, 2, one | made(step_2=1.0, step_2__hard=0.2)) == (
        "the reward on hard was best after step 1 (0.300), 1 evaluation ago"
    )


def test_a_named_set_counts_without_held_out_tasks_beside_it() -> None:
    early = EarlyStopping(patience=1, on="hard")
    assert reason_to_end(early, 0, made(before__hard=0.3)) is None
    flat = made(before__hard=0.3, step_1__hard=0.3)
    assert reason_to_end(early, 1, flat) is not None
    assert reason_to_end(early, 2, flat) is None


def test_evaluations_outside_the_schedule_do_not_count() -> None:
    odd = made(before_sampled=0.9, after=0.9, step_1_sampled=0.9, before=0.1, step_1=0.2)
    assert reason_to_end(EarlyStopping(patience=1), 1, odd) is None
