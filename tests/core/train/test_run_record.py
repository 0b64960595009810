"""What must be the same when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.train.run_folder import RunError
from agentlightning.train.run_record import (
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
