"""What must be the same when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentlightning as agl
from agentlightning.train.run_folder import RunError
from agentlightning.train.run_record import (
    changed_settings,
    check_store_knows,
    check_unchanged,
    differences,
)


@pytest.mark.parametrize(
    "checkpoint", ["checkpoints/step-2", "checkpoints/global_step_2", "policies/wolf/checkpoints/step-2"]
)
def test_checkpoints_that_the_store_does_not_know_are_not_trained_over(
    checkpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    check_store_knows(tmp_path)
    (tmp_path / checkpoint).mkdir(parents=True)
    with pytest.raises(RunError, match="its store knows no run"):
        check_store_knows(tmp_path)


def test_differences_are_named_by_their_keys() -> None:
    then = {"recipe": {"kl": 0.0, "group_by": ["task"]}, "seed": 1, "gone": 2}
    now = {"recipe": {"kl": 0.1, "group_by": ["task"]}, "seed": 1, "new": {"a": None}}
    assert differences(then, now) == [("recipe.kl", 0.0, 0.1), ("gone", 2, None), ("new", None, {"a": None})]
    with pytest.raises(
        RunError, match=r"run r cannot go on: recipe\.kl was 0\.0 when it began and is 0\.1; use"
    ):
        check_unchanged({"run_id": "r", **then}, now)


def test_a_run_of_another_build_is_refused_in_one_sentence_that_names_what_differs() -> None:
    """Fields that its build did not know are no values that a person could give back."""
    recipe = agl.GRPO().model_dump()
    former = {name: value for name, value in recipe.items() if name not in ("step_weight", "correction")}
    then = {"run_id": "r", "recipe": former, "seed": 1, "versions": {"agl-core": "0.0.9"}}
    with pytest.raises(RunError) as refused:
        check_unchanged(then, {"recipe": recipe, "seed": 1, "batch_size": 2})
    assert str(refused.value) == (
        "run r was begun by another build of Agent Lightning (0.0.9), which differs from this one in "
        "batch_size, recipe.correction, recipe.step_weight, so it cannot go on here: resume it with that "
        "build, or begin another run"
    )
    check_unchanged({**then, "recipe": recipe}, {"recipe": agl.GRPO().model_dump(), "seed": 1})


def test_what_a_schedule_keeps_fixed_cannot_change_and_what_it_does_not_is_reported() -> None:
    then = {"run_id": "r", "seed": 1, "schedule": {"order": "finished", "quorum": {"k": 2}}}
    now = {"seed": 1, "schedule": {"order": "finished", "quorum": {"k": 3}}}
    check_unchanged(then, now, ["order"])
    assert changed_settings(then, now) == [("schedule.quorum.k", 2, 3)]
    for other in ({}, {"schedule": {}}):
        with pytest.raises(RunError, match="order was 'finished' when it began and is None"):
            check_unchanged(then, {"seed": 1, **other}, ["order"])
        with pytest.raises(RunError, match="order was None when it began and is 'finished'"):
            check_unchanged({"run_id": "r", "seed": 1, **other}, now, ["order"])
